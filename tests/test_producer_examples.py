"""The examples that newcomers copy from: valid suites, skills without warnings, tasks that can be passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from judges import text_judge
from judges.judgment import Workspace
from judges.spec import Contains
from producer.skills import skill as skills
from producer.suites import suite

EXAMPLES = Path(__file__).parent.parent / "examples"
RELEASE_NOTES = EXAMPLES / "release-notes"

GOOD_NOTES = {
    "heading-has-version-and-iso-date": "## 2.4.0 (2026-03-03)\n\n### Added\n\n- Crop keeps ratios. (#811)",
    "sections-and-numbers": "### Added\n\n- Snooze. (#55)\n\n### Fixed\n\n- Attachments open. (#57)",
    "names-the-platform": "### Fixed\n\n- **iOS:** Rotating while drawing no longer closes the app. (#431)",
    "leaves-out-what-users-cannot-see": "### Added\n\n- Invoices in Portuguese. (#77)",
    "breaking-change-says-what-to-do": (
        "### Breaking\n\n- `--json` is gone. Action required: write `--format json`. (#140)"
    ),
    "security-without-a-recipe": (
        "### Security\n\n- CVE-2026-0417: a download link could return any file, in 4.0 to 4.2.2. (#260)"
    ),
    "reverted-change-never-happened": "### Added\n\n- Each podcast remembers its playback speed. (#301)",
    "nothing-that-users-would-notice": "## 1.0.9 (2026-01-07)\n\nNo user-visible changes.",
    "everything-at-once": (
        "## 6.0.0 (2026-08-12)\n\n### Breaking\n\n- `connect()` takes no password. Action required: pass "
        "`credentials=Credentials(user, password)`. (#501)\n\n### Deprecated\n\n- `fetch_all()`: use "
        "`stream()`; it will be removed in 7.0. (#504)\n\n### Added\n\n- Results as a stream. (#502, #503)"
        "\n\n### Fixed\n\n- **Windows:** Closing a connection twice no longer crashes. (#505)"
    ),
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("suite.yaml")), ids=lambda path: path.parent.name)
def test_every_example_suite_is_valid(path: Path) -> None:
    assert suite.load(path).tasks


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("SKILL.md")), ids=lambda path: path.parent.name)
def test_every_example_skill_loads_without_a_warning_and_can_travel(path: Path) -> None:
    skill = skills.load(path.parent)

    assert skill.warnings == ()
    assert skills.bundle(skill).digest


def test_the_release_notes_suite_covers_three_tiers_and_its_two_skills_differ() -> None:
    tasks = suite.load(RELEASE_NOTES / "suite.yaml").tasks

    assert {task.tier for task in tasks} == {"T1", "T2", "T3"}
    assert {task.id for task in tasks} == set(GOOD_NOTES)
    assert skills.load(RELEASE_NOTES / "skill").text != skills.load(RELEASE_NOTES / "baseline").text


@pytest.mark.parametrize("task", suite.load(RELEASE_NOTES / "suite.yaml").tasks, ids=lambda task: task.id)
def test_notes_that_follow_the_skill_pass_and_a_copy_of_the_prompt_does_not(task) -> None:
    assert isinstance(task.judge, Contains)

    check = text_judge(task.judge, Workspace())
    assert check is not None
    good = check(GOOD_NOTES[task.id])
    lazy = check(task.prompt)

    assert good.passed, good.details
    assert not lazy.passed
