"""A run as JUnit XML: the answer as a case that follows the gate, then one test suite an arm, one case a task or check.

A candidate's case fails when its task did, and is an error when no attempt was judged. The baseline's only tell how
it went: what fails without the skill is no failure of the change that a CI looks at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from aggregate.artifact.answer import answer_of
from aggregate.artifact.model import Artifact, CheckResult, TaskResult
from aggregate.artifact.sentences import short_models
from aggregate.records.run_info import BASELINE
from aggregate.report.result_tables import Material, line_text
from aggregate.text.files import write_text

_MESSAGE = 300
_DETAILS = 4000
# What XML 1.0 cannot hold, not even as a reference; DEL and the C1 controls are allowed there but help nobody.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def text(material: Material) -> str:
    """The XML document; characters that XML cannot hold are replaced by �."""
    artifact = material.artifact
    root = ElementTree.Element("testsuites", name=artifact.skill_id or artifact.run_id)
    root.append(_answer(artifact))
    for arm, results in ((BASELINE, artifact.baseline_results), (artifact.arm, artifact.candidate_results)):
        if results:
            root.append(_suite(artifact, arm, results))
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
    models = short_models(artifact.models) if len(artifact.models) > 1 else {}
    skill = artifact.skill_id or "uplift"
    for result in results:
        name = result.task_id + (f" [{models[result.model]}]" if result.model in models else "")
        suite.append(_case(f"{skill}.{arm}", name, result, fails=arm != BASELINE))
    for check in (one for one in artifact.checks if one.arm == arm):
        suite.append(_check(f"{skill}.{arm}.{check.task_id}", check, fails=arm != BASELINE))
    _add_counts(suite, sum(result.duration_ms or 0 for result in results))
    return suite


def _answer(artifact: Artifact) -> ElementTree.Element:
    """What the run says, as a case that fails, is an error or skipped as the gate is."""
    answer = answer_of(artifact)
    suite = ElementTree.Element("testsuite", name="answer")
    name = artifact.candidate_id or artifact.arm
    case = ElementTree.SubElement(suite, "testcase", classname=artifact.skill_id or "uplift", name=name)
    said = [answer.headline, *map(line_text, answer.lines)]
    said += [f"next: {answer.next.text}"] if answer.next.text else []
    kinds = {"fail": "failure", "error": "error", "skipped": "skipped"}
    if answer.gate in kinds:
        _add(case, kinds[answer.gate], answer.headline, f"gate: {answer.gate}", "\n".join(said))
    else:
        ElementTree.SubElement(case, "system-out").text = "\n".join(said)
    _add_counts(suite, 0)
    return suite


def _case(group: str, name: str, result: TaskResult, *, fails: bool) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=group, name=name)
    case.set("time", _seconds(result.duration_ms or 0))
    passes = f"{result.passes} of {result.judged} judged attempts passed"
    problem = result.error or "no attempt was judged"
    if result.passed is not None:
        problem = result.said or result.error or passes
    if fails and result.passed is None:
        _add(case, "error", problem, "no judgment", passes)
    elif fails and not result.passed:
        _add(case, "failure", problem, result.outcome or "", f"{passes}\n{problem}")
    elif result.passed is None or result.passes < result.judged:
        ElementTree.SubElement(case, "system-out").text = f"{passes}\n{problem}"[:_DETAILS]
    return case


def _check(group: str, check: CheckResult, *, fails: bool) -> ElementTree.Element:
    """One check of a task: it fails where it is required and no attempt passed it."""
    case = ElementTree.Element("testcase", classname=group, name=check.check, time=_seconds(0))
    counts = f"{check.passes} of {check.judged} judgments passed, {check.missing} without a score"
    said = f"{counts}; by {check.by}"
    if fails and check.required and check.judged and not check.passes:
        _add(case, "failure", said, check.judge, said)
    else:
        ElementTree.SubElement(case, "system-out").text = said
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
