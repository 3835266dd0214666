"""Check and apply JSON Schemas that strangers may have written, within a time limit.

Nothing is ever fetched: a `$ref` must lead to the schema itself or to a published meta-schema. Patterns are
matched with a time limit, and so is the whole check, because a few dozen references can ask for billions of
steps. `format` is a remark and not a demand, as the standard has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import jsonschema
from jsonschema import exceptions, validators
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it publishes no hints
from referencing.exceptions import Unresolvable

from judges import safe_patterns
from judges.judgment import TooSlow, look_at_clock, time_limit

MAX_UNEVALUATED = 5_000
Schema = dict[str, Any]
Path = tuple[str | int, ...]

_DATA = {"const", "enum", "default", "examples"}
_PROBES: tuple[Any, ...] = (None, {}, [], "", 0)
_DRAFTS = (
    jsonschema.Draft202012Validator,
    jsonschema.Draft201909Validator,
    jsonschema.Draft7Validator,
    jsonschema.Draft6Validator,
    jsonschema.Draft4Validator,
)


def wrong_schema(schema: Schema) -> Iterator[tuple[Path, str]]:
    """Yield every fault of a schema, as its place and what is wrong there; none where it can be used."""
    draft = _draft(schema)
    if draft is None:
        yield ("$schema",), "unknown draft; leave it out, or name a draft from 4 to 2020-12"
        return
    wrong = [
        _deepest(error) for error in draft(draft.META_SCHEMA, registry=REGISTRY).iter_errors(schema)
    ] or list(_unusable(schema, ()))
    yield from wrong or _endless(schema)


def _deepest(error: exceptions.ValidationError) -> tuple[Path, str]:
    deepest = exceptions.best_match([error]) or error
    return tuple(deepest.absolute_path), f"not a JSON Schema: {deepest.message[:200]}"


def wrong_value(schema: Schema, value: Any, most: int = 1) -> list[tuple[Path, str]]:
    """Where and how a value breaks its schema; raises TooSlow, and RecursionError for endless schemas."""
    # Where a `$schema` stands, jsonschema goes on with its own checks instead of these.
    plain = {key: part for key, part in schema.items() if key != "$schema"}
    checker = _bounded(_draft(schema) or _DRAFTS[0])(plain, registry=REGISTRY)
    errors = islice(checker.iter_errors(value), most)
    return [(tuple(error.absolute_path), error.message) for error in errors]


@cache
def _bounded(draft: Any) -> Any:
    """A draft's checks, each of which looks at the clock."""
    keywords: dict[str, Any] = {name: partial(_timed, check) for name, check in draft.VALIDATORS.items()}
    own: dict[str, Any] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    if "unevaluatedItems" in keywords:
        own["unevaluatedItems"] = partial(_unevaluated_items, draft.VALIDATORS["unevaluatedItems"])
    return validators.extend(draft, keywords | own)  # type: ignore[no-untyped-call]  # its stubs leave this one out


def _draft(schema: Schema) -> Any:
    named = schema.get("$schema")
    if named is None:
        return _DRAFTS[0]
    names = {str(draft.ID_OF(draft.META_SCHEMA)).rstrip("#"): draft for draft in _DRAFTS}
    return names.get(named.rstrip("#")) if isinstance(named, str) else None


def _unusable(part: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield patterns that cannot be used and references that lead out of the schema, at any depth."""
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from _unusable(item, (*path, index))
    if not isinstance(part, dict):
        return
    if isinstance(part.get("patternProperties"), dict):
        for name in part["patternProperties"]:
            yield from _wrong_pattern(name, (*path, "patternProperties", name))
    if path and "$schema" in part:
        yield (*path, "$schema"), "only the whole schema can name its draft; remove it"
    # Its search for patterns has no time limit, and rewriting that keyword is not worth its size.
    if "unevaluatedProperties" in part:
        yield (*path, "unevaluatedProperties"), "not supported; use additionalProperties"
    for key, value in part.items():
        if key == "pattern" and isinstance(value, str):
            yield from _wrong_pattern(value, (*path, key))
        elif key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
            if not value.startswith("#") and value.rstrip("#") not in {uri.rstrip("#") for uri in REGISTRY}:
                yield (*path, key), f"{value!r} leads outside, and nothing is fetched; copy it into $defs"
        elif key not in _DATA:
            yield from _unusable(value, (*path, key))


def _wrong_pattern(pattern: str, path: Path) -> Iterator[tuple[Path, str]]:
    if len(pattern) > 2_000:
        yield path, "a pattern of more than 2,000 characters; shorten it"
        return
    try:
        safe_patterns.compiled(pattern)
    except ValueError as wrong:
        yield path, str(wrong)


def _endless(schema: Schema) -> Iterator[tuple[Path, str]]:
    try:
        for value in _PROBES:
            with time_limit():
                wrong_value(schema, value)
    except RecursionError:
        yield (), "refers to itself without end"
    except TooSlow:
        yield (), "takes too long to check even for an empty value; simplify it"
    except Unresolvable as unresolved:
        yield (), f"a $ref leads nowhere: {str(unresolved)[:200]}"


def _timed(check: Callable[..., Any], *told: Any) -> Iterator[Any]:
    look_at_clock("simplify the schema")
    yield from check(*told) or ()


def _found(pattern: str, text: str) -> bool:
    return safe_patterns.search(safe_patterns.compiled(pattern), text) is not None


def _pattern(validator: Any, wanted: str, value: Any, _: Any) -> Iterator[Any]:
    if validator.is_type(value, "string") and not _found(wanted, value):
        yield exceptions.ValidationError(f"{value!r} does not match {wanted!r}")


def _pattern_properties(validator: Any, wanted: Any, value: Any, _: Any) -> Iterator[Any]:
    if validator.is_type(value, "object"):
        for pattern, schema in wanted.items():
            for name, item in value.items():
                if _found(pattern, name):
                    yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(value, "object"):
        return
    known, named = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        name for name in value if name not in known and not any(_found(pattern, name) for pattern in named)
    ]
    if isinstance(wanted, dict):
        for name in extras:
            yield from validator.descend(value[name], wanted, path=name)
    elif not wanted and extras:
        some = ", ".join(map(repr, extras[:5]))
        yield exceptions.ValidationError(f"unexpected properties: {some}{'…' if len(extras) > 5 else ''}")


def _unique_items(validator: Any, wanted: bool, value: Any, _: Any) -> Iterator[Any]:
    # The usual way compares every item with every other, which takes hours for a long list.
    seen: set[str] = set()
    for item in value if wanted and validator.is_type(value, "array") else ():
        look_at_clock("simplify the schema")
        if (text := json.dumps(_whole(item), sort_keys=True)) in seen:
            yield exceptions.ValidationError("holds the same item twice")
            return
        seen.add(text)


def _unevaluated_items(
    check: Callable[..., Any], validator: Any, wanted: Any, value: Any, schema: Any
) -> Any:
    # The library compares every item with every other, without a look at the clock.
    if validator.is_type(value, "array") and len(value) > MAX_UNEVALUATED:
        yield exceptions.ValidationError(
            f"more than {MAX_UNEVALUATED:,} items to be checked by unevaluatedItems"
        )
        return
    yield from _timed(check, validator, wanted, value, schema)


def _whole(value: Any) -> Any:
    """The value with whole numbers as integers: 1 and 1.0 are the same JSON number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {key: _whole(item) for key, item in value.items()} if isinstance(value, dict) else value
