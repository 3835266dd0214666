"""Fill the page templates: autoescaped, with a content policy that allows our own script and style by hash only."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

_SCRIPTS = ("elements.js", "texts.js", "differences.js", "rows.js", "details.js", "page.js")
# The end of a script element, or a comment that hides it, must not come out of a string in the data.
_DANGEROUS = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def report(
    view: Mapping[str, Any], index: Mapping[str, Any], blocks: list[str], *, frames: bool
) -> Iterator[str]:
    """The whole page in pieces: `view` fills the static part, `index` and `blocks` are read by the script."""
    script, style = f"(() => {{\n{''.join(map(_asset, _SCRIPTS))}}})();", _asset("report.css")
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    if frames:
        # Only a page whose texts lie in the folder beside it may show those.
        policy.append("frame-src 'self' file:")
    return (
        _environment()
        .get_template("report.html")
        .generate(
            view=view,
            policy="; ".join(policy),
            script=Markup(script),
            style=Markup(style),
            index=embedded(index),
            blocks=blocks,
        )
    )


def block(number: int, packed: str) -> str:
    """A small page that hands one block of texts to the report that shows it in a frame."""
    script = _asset("block.js")
    return (
        _environment()
        .get_template("block.html")
        .render(
            number=number,
            packed=packed,
            policy=f"default-src 'none'; script-src {_hash(script)}",
            script=Markup(script),
        )
    )


def embedded(value: Mapping[str, Any]) -> Markup:
    """JSON that is safe inside a script element, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_DANGEROUS))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> str:
    return (files("aggregate.report") / "templates" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
