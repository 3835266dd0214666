"""Write a run as one HTML page that needs no network: the answer first, then every task down to its outputs.

Templates are autoescaped, and a content policy allows our own script and style by hash only. Prompts, outputs and
judgments are in compressed blocks that the page unpacks when they are looked at. Blocks are part of the page up to
INLINE_BYTES; a larger run keeps them in a folder beside it, one small page a block, because a file opened from disk
may show other files in a frame but may not read them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from aggregate.artifact.model import Artifact, TaskResult
from aggregate.artifact.sentences import short_models
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE, UNKNOWN_MODEL
from aggregate.report import result_tables as tables
from aggregate.report.result_tables import Material, TaskText, Unit
from aggregate.text import formats
from aggregate.text.files import make_folder, open_to_write, writing
from aggregate.text.formats import clean, dumps, plain, shown

_SCRIPTS = ("elements.js", "texts.js", "differences.js", "rows.js", "details.js", "page.js")
# The end of a script element, or a comment that hides it, must not come out of a string in the data.
_DANGEROUS = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def report(artifacts: list[Artifact], index: str, blocks: list[str], *, frames: bool) -> Iterator[str]:
    """The whole page in pieces, a tab for each of several candidates; its script reads `index` (JSON) and `blocks`."""
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
    template = _environment().get_template("report.html")
    return template.generate(
        views=[tables.view(artifact) for artifact in artifacts],
        shared=list(tables.shared(artifacts)),
        columns=(tables.CANDIDATES, tables.GROUP_COLUMNS, tables.CHECK_COLUMNS),
        policy="; ".join(policy),
        script=Markup(script),
        style=Markup(style),
        index=Markup(index.translate(_DANGEROUS)),  # safe inside a script element, whatever its strings hold
        blocks=blocks,
    )


def block(number: int, packed: str) -> str:
    """A small page that hands one block of texts to the report that shows it in a frame."""
    script = _asset("block.js")
    policy = f"default-src 'none'; script-src {_hash(script)}"
    template = _environment().get_template("block.html")
    return template.render(number=number, packed=packed, policy=policy, script=Markup(script))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = (formats.number, formats.signed, formats.usd)
    environment.filters |= {"plain": plain, **{how.__name__: partial(shown, how=how) for how in numbers}}
    return environment


@cache
def _asset(name: str) -> str:
    return (files("aggregate.report") / "templates" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


INLINE_BYTES = 8 * 2**20  # of base64 text in the page
TEXT_CHARACTERS = 100_000  # of one prompt, output or reason
_LIST_ENTRIES = 500
_BLOCK_CHARACTERS = 400_000
# The page's index has them, and where the steps are kept says nothing to a reader.
_KEYS = {"run_id", "task", "tier", "tags", "arm", "model", "trajectory"}


class TextBlocks:
    """Takes entries one by one and gives each a number; holds one block open and the others compressed."""

    def __init__(self, folder: Path, inline_bytes: int = INLINE_BYTES) -> None:
        self.starts: list[int] = []  # the number of each block's first entry
        self.inline: list[str] = []
        self.is_outside = False
        self._folder = folder
        self._growing = folder.with_name(f".{folder.name}.part")
        self._inline_bytes = inline_bytes
        self._size = 0
        self._next = 0
        self._open: list[str] = []
        self._open_characters = 0

    def add(self, entry: str) -> int:
        """Store an entry, written as JSON, and return its number."""
        # Most entries are short as a whole, and taking them apart is what makes 100,000 of them slow.
        text = entry if len(entry) <= TEXT_CHARACTERS else dumps(_cut(json.loads(entry)))
        if self._open and self._open_characters + len(text) > _BLOCK_CHARACTERS:
            self._close()
        if not self._open:
            self.starts.append(self._next)
        self._open.append(text)
        self._open_characters += len(text)
        self._next += 1
        return self._next - 1

    def finish(self) -> None:
        """Close the last block, and put a folder of blocks in the place of an older one."""
        if self._open:
            self._close()
        if self._folder.is_dir():
            shutil.rmtree(self._folder)
        if self.is_outside:
            self._growing.rename(self._folder)

    def discard(self) -> None:
        """Leave nothing behind after a failure."""
        shutil.rmtree(self._growing, ignore_errors=True)

    def _close(self) -> None:
        data = f"[{','.join(self._open)}]".encode("utf-8", "replace")
        packed = base64.b64encode(gzip.compress(data, compresslevel=4, mtime=0)).decode("ascii")
        self._open, self._open_characters = [], 0
        self.inline.append(packed)
        self._size += len(packed)
        if self._size > self._inline_bytes:
            self._move_outside()

    def _move_outside(self) -> None:
        if not self.is_outside:
            self.discard()
            make_folder(self._growing)
            self.is_outside = True
        first = len(self.starts) - len(self.inline)
        for number, packed in enumerate(self.inline, start=first):
            with open_to_write(self._growing / f"{number}.html", "wb") as file:
                file.write(block(number, packed).encode("ascii"))
        self.inline = []


def task_entry(task: TaskText) -> str:
    """As JSON, what a task asked, and its judge's settings: each a text, or a list of texts."""
    told = {**task.judge, **({"checks": list(task.checks)} if task.checks else {})}
    settings = {
        name: [_as_text(one) for one in value] if isinstance(value, list) else _as_text(value)
        for name, value in told.items()
        if value not in (None, [], {}, "")
    }
    return dumps({"prompt": task.prompt, "description": task.description, "judge": settings})


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if one not in (None, [], {}, "")}
        return "; ".join(f"{name.replace('_', ' ')}: {_as_text(one)}" for name, one in known.items())
    return value if isinstance(value, str) else dumps(value)


def _cut(value: Any) -> Any:
    """The entry with every long text and list cut, saying by how much."""
    if isinstance(value, str):
        if len(value) <= TEXT_CHARACTERS:
            return value
        return f"{value[:TEXT_CHARACTERS]}\n… cut here: {len(value) - TEXT_CHARACTERS:,} more characters"
    if isinstance(value, Mapping):
        return {name: _cut(entry) for name, entry in value.items()}
    if isinstance(value, list):
        cut = [_cut(entry) for entry in value[:_LIST_ENTRIES]]
        more = len(value) - _LIST_ENTRIES
        return [*cut, f"… and {more:,} more"] if more > 0 and isinstance(value[0], str) else cut
    return value


_LETTERS = {"passed": "p", "failed": "f", "timeout": "t", "error": "e"}
_DESCRIPTION = 160
# What the page's script calls the fields of a task's result.
_SIDE = {"passes": "passes", "judged": "judged", "score": "score"}
_SIDE |= {"cost": "cost_usd", "ms": "duration_ms", "range": "accuracy_range"}
Attempts = dict[tuple[str, str, str], list[tuple[int, str, int]]]


class Page:
    """The page of a run: it takes the records of its arms one by one, and is written when all have been.

    Where the texts are too large for one file, they go to a folder `<name>-texts` beside it.
    """

    def __init__(self, path: Path, arms: Collection[str], inline_bytes: int = INLINE_BYTES) -> None:
        make_folder(path.parent)
        self._path = path
        self._arms = arms
        self._blocks = TextBlocks(path.with_name(f"{path.stem}-texts"), inline_bytes)
        self._attempts: Attempts = {}

    def add(self, record: AttemptRecord) -> None:
        """Keep an attempt that was run for one of these arms."""
        if record.arm in self._arms and record.outcome != "skipped":
            key = (record.task, record.model or UNKNOWN_MODEL, record.arm)
            # All of the attempt that the page's index does not say.
            number = self._blocks.add(record.model_dump_json(exclude_defaults=True, exclude=_KEYS))
            attempts = self._attempts.setdefault(key, [])
            attempts.append((record.attempt, _LETTERS[record.outcome], number))

    def write(self, material: Material) -> Path:
        """Write the page; an older one is replaced as a whole, also when writing fails half-way."""
        prompts = {name: self._blocks.add(task_entry(task)) for name, task in material.tasks.items()}
        self._blocks.finish()
        folder = f"{self._path.stem}-texts" if self._blocks.is_outside else None
        index = _index(material, self._attempts, prompts, self._blocks.starts, folder)
        self._attempts = {}  # of 100,000 attempts it is 20 MB, and the page is in memory as a whole by now
        with writing(self._path) as file:
            outside = self._blocks.is_outside
            for piece in report(material.ranked, index, self._blocks.inline, frames=outside):
                file.write(piece.encode("utf-8", "replace"))
        return self._path

    def discard(self) -> None:
        """Leave nothing behind of a page that will not be written."""
        self._blocks.discard()


def write(material: Material, path: Path, *, inline_bytes: int = INLINE_BYTES) -> Path:
    """Write the page of a run whose records can be read."""
    page = Page(path, {BASELINE, *(artifact.arm for artifact in material.ranked)}, inline_bytes)
    try:
        for record in material.records():
            page.add(record)
        return page.write(material)
    except BaseException:
        page.discard()
        raise


def _index(
    material: Material, attempts: Attempts, prompts: Mapping[str, int], starts: list[int], folder: str | None
) -> str:
    """What the page's script lists, filters and searches without opening any text, as JSON.

    Each row is written at once: as values, 10,000 of them take 20 MB of the command that waits for the run.
    """
    artifact = material.artifact
    named = {
        "run": artifact.run_id,
        "pass_k": artifact.pass_k,
        "models": short_models(artifact.models),
        "baseline": artifact.baseline != "none",
    }
    rows = (
        _row(unit, number, one.arm, material, attempts, prompts)
        for number, one in enumerate(material.ranked)
        for unit in tables.units(one)
    )
    texts = ",".join([_compact(clean(row, digits=6)) for row in rows])
    head, tail = _compact(clean(named)), _compact({"starts": starts, "folder": folder})
    return f'{head[:-1]},"rows":[{texts}],{tail[1:]}'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _row(
    unit: Unit, number: int, mine: str, material: Material, attempts: Attempts, prompts: Mapping[str, int]
) -> dict[str, Any]:
    task = material.tasks.get(unit.task)
    interval = unit.candidate.interval if unit.candidate else None
    return {
        "candidate": number,
        "task": unit.task,
        "model": unit.model,
        "tier": next((side.tier for side in unit.sides if side.tier), None),
        "judge": next((side.judge for side in unit.sides if side.judge), None),
        "tags": list(task.tags) if task else [],
        "about": task.description[:_DESCRIPTION] if task else "",
        "prompt": prompts.get(unit.task),
        "difference": unit.difference,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "flags": unit.flags,
        "arms": [
            _side(side, attempts.get((unit.task, unit.model, arm), []))
            for side, arm in zip((unit.baseline, unit.candidate), (BASELINE, mine), strict=True)
        ],
    }


def _side(side: TaskResult | None, attempts: list[tuple[int, str, int]]) -> dict[str, Any] | None:
    if side is None and not attempts:
        return None
    ordered = sorted(attempts)
    return {
        **{name: getattr(side, field, None) for name, field in _SIDE.items()},
        "outcomes": "".join(letter for _, letter, _ in ordered),
        "numbers": [number for number, _, _ in ordered],
        "entries": [entry for _, _, entry in ordered],
    }
