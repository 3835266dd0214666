"""The contains judge, and the one place where a judge that breaks becomes an error judgment."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from judges import judge
from judges.judgment import Completion, Judgment
from judges.spec import Contains, Rubric


def a_contains(*expected: str, forbidden: tuple[str, ...] = ()) -> Contains:
    return Contains(type="contains", expected=list(expected) or ["iOS"], forbidden=list(forbidden))


async def nobody(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("this judge must not ask a model")


async def judged(spec: Contains, text: str) -> Judgment:
    return await judge(spec, Completion(text=text), nobody)


async def test_an_output_with_every_expected_string_passes_with_score_1():
    judgment = await judged(a_contains("iOS", "Android"), "For iOS and Android.")
    assert (judgment.judge, judgment.passed, judgment.score) == ("contains", True, 1.0)
    assert judgment.matched == ("iOS", "Android")
    assert judgment.missed == ()
    assert judgment.error is None


async def test_case_and_unicode_composition_do_not_matter():
    judgment = await judged(a_contains("STRASSE", "café"), "straße, CAFE\N{COMBINING ACUTE ACCENT}")
    assert judgment.passed


async def test_a_missing_string_fails_and_the_score_is_the_share_of_conditions_met():
    judgment = await judged(a_contains("iOS", "Android", "web"), "iOS and web")
    assert judgment.passed is False
    assert judgment.score == pytest.approx(2 / 3)
    assert judgment.matched == ("iOS", "web")
    assert judgment.missed == ("Android",)
    assert "'Android'" in judgment.details


async def test_a_forbidden_string_fails_even_when_all_expected_ones_are_there():
    judgment = await judged(a_contains("iOS", forbidden=("TODO", "FIXME")), "iOS; todo: more")
    assert judgment.passed is False
    assert judgment.score == pytest.approx(2 / 3)
    assert "forbidden: 'TODO'" in judgment.details


async def test_an_empty_output_fails_with_score_0_and_is_no_error():
    judgment = await judged(a_contains("iOS"), "")
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None)


class Breaks(Contains):
    """A spec whose fields cannot be read, so that the judge breaks."""

    def __getattribute__(self, name: str) -> object:
        if name == "expected":
            raise ZeroDivisionError("out of luck")
        return super().__getattribute__(name)


async def test_a_judge_that_breaks_gives_an_error_judgment_that_names_the_exception():
    judgment = await judge(Breaks(type="contains", expected=["x"]), Completion(text="x"), nobody)
    assert (judgment.passed, judgment.score) == (None, None)
    assert judgment.error == "ZeroDivisionError: out of luck"
    assert "ZeroDivisionError" in judgment.details
    assert judgment.judge == "contains"


async def test_cancelling_is_not_a_breakage_and_reaches_the_caller():
    async def never_answers(model: str, prompt: str, *, system: str = "") -> Completion:
        return await asyncio.get_running_loop().create_future()

    spec = Rubric(type="llm-rubric", rubric="polite?", judges=["a", "b"])
    waiting = asyncio.create_task(judge(spec, Completion(text="hi"), never_answers))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_importing_judges_stays_light():
    heavy = "{'pytest', '_pytest', 'asyncio.subprocess', 'subprocess', 'pandas', 'celery'}"
    code = f"import sys, judges, judges.spec, judges.judgment; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
