"""A run as JUnit XML: one test suite an arm, one test case a task, so that any CI can show it.

A case fails when its task did, is an error when no attempt was judged, and the candidate's cases are what
a CI should follow; the baseline's are there to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from aggregate.artifact.model import Artifact, TaskResult
from aggregate.report.source import Material
from aggregate.text.files import write_text

_MESSAGE = 300
_DETAILS = 4000
# What XML 1.0 cannot hold, not even as a reference; DEL and the C1 controls are allowed there but help nobody.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def text(material: Material) -> str:
    """The XML document; characters that XML cannot hold are replaced by �."""
    artifact = material.artifact
    root = ElementTree.Element("testsuites", name=artifact.skill_id or artifact.run_id)
    arms: list[Sequence[TaskResult]] = [artifact.baseline_results, artifact.candidate_results]
    for arm, results in zip(material.arms, arms, strict=True):
        if results:
            root.append(_suite(artifact, arm, results))
    if not artifact.was_run:
        root.append(_not_run(artifact))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ElementTree.indent(root)
    xml = _FORBIDDEN.sub("\ufffd", ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{xml}\n'


def write(material: Material, path: Path) -> Path:
    return write_text(text(material), path)


def _suite(artifact: Artifact, arm: str, results: Sequence[TaskResult]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=arm)
    if artifact.created_at:
        suite.set("timestamp", artifact.created_at.removesuffix("Z"))
    several = len(artifact.models) > 1
    skill = artifact.skill_id or "uplift"
    for result in results:
        name = f"{result.task_id} [{result.model}]" if several else result.task_id
        suite.append(_case(f"{skill}.{arm}", name, result))
    _add_counts(suite, sum(result.duration_ms or 0 for result in results))
    return suite


def _not_run(artifact: Artifact) -> ElementTree.Element:
    """A candidate without a task to show: skipped, or an error that no CI may take for a success."""
    suite = ElementTree.Element("testsuite", name=artifact.arm)
    name = artifact.candidate_id or artifact.arm
    case = ElementTree.SubElement(suite, "testcase", classname=artifact.skill_id or "uplift", name=name)
    kind = "error" if artifact.verdict == "error" else "skipped"
    _add(case, kind, artifact.reason, "not run", artifact.reason)
    _add_counts(suite, 0)
    return suite


def _case(group: str, name: str, result: TaskResult) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=group, name=name)
    case.set("time", _seconds(result.duration_ms or 0))
    passes = f"{result.passes} of {result.judged} judged attempts passed"
    if result.passed is None:
        problem = result.error or "no attempt was judged"
        _add(case, "error", problem, "no judgment", passes)
    elif not result.passed:
        problem = result.details or result.error or passes
        _add(case, "failure", problem, result.outcome or "", f"{passes}\n{problem}")
    elif result.passes < result.judged:
        ElementTree.SubElement(case, "system-out").text = passes
    return case


def _add(case: ElementTree.Element, tag: str, message: str, kind: str, body: str) -> None:
    ElementTree.SubElement(case, tag, message=message[:_MESSAGE], type=kind).text = body[:_DETAILS]


def _add_counts(suite: ElementTree.Element, milliseconds: float) -> None:
    suite.set("tests", str(len(suite)))
    for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("time", _seconds(milliseconds))


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.3f}"
