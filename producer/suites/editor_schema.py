"""The JSON Schema of a suite, made from the same types that load suites, for editors and other tools.

It can say less than `uplift validate`: not that ids are unique, that files exist, that a pattern compiles or
that a JSON Schema inside the suite is one. What it rejects, `validate` rejects too.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from aggregate.text.formats import schema_of
from producer.suites.rules import SuiteRules, TaskRules

FILE_NAME = "suite.schema.json"


class _WholeSuite(SuiteRules):
    """A suite: the tasks that a skill is judged by."""

    tasks: Annotated[list[TaskRules], Field(min_length=1)]


def schema() -> dict[str, Any]:
    """The schema as a value."""
    return schema_of(_WholeSuite, "Uplift task suite, version 1.0")


def text() -> str:
    """The schema as the text of a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
