"""The JSON Schema of a suite, made from the same types that load suites, for editors and other tools.

It can say less than `uplift validate`: not that ids are unique, that files exist, that a pattern compiles or
that a JSON Schema inside the suite is one. What it rejects, `validate` rejects too.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from producer.suite_rules import SuiteRules, TaskRules

FILE_NAME = "suite.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _WholeSuite(SuiteRules):
    """A suite: the tasks that a skill is judged by."""

    tasks: Annotated[list[TaskRules], Field(min_length=1)]


def schema() -> dict[str, Any]:
    """The schema as a value."""
    made = _WholeSuite.model_json_schema(by_alias=True)
    made = {"$schema": DIALECT, **made, "title": "Uplift task suite, version 1.0"}
    _tidy(made)
    return made


def text() -> str:
    """The schema as the text of a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(part: Any) -> None:
    """Leave out what only repeats: names as titles, and defaults that are null."""
    if isinstance(part, list):
        for item in part:
            _tidy(item)
    if isinstance(part, dict):
        for value in part.get("properties", {}).values():
            value.pop("title", None)
            if value.get("default", 0) is None:
                del value["default"]
        for value in part.values():
            _tidy(value)
