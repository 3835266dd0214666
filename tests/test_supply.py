"""What an image and the action install is fixed by its content: packages by hashes, others' actions by commit."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = ("anthropic", "openai", "monitor")


def locked() -> dict[str, tuple[Requirement, list[str]]]:
    """Each package of the lock, with the words that follow it."""
    lines = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
    found = {}
    for line in lines:
        asked, *rest = line.split(" --")
        requirement = Requirement(asked)
        found[canonicalize_name(requirement.name)] = (requirement, [f"--{word.strip()}" for word in rest])
    return found


def test_every_package_of_the_lock_has_one_version_and_hashes_and_nothing_else():
    for name, (requirement, words) in locked().items():
        (specifier,) = requirement.specifier
        assert (specifier.operator, requirement.url) == ("==", None), name
        assert words, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in words), name


def test_the_lock_agrees_with_constraints():
    pinned = map(Requirement, (ROOT / "constraints.txt").read_text().split())
    versions = {canonicalize_name(one.name): str(one.specifier) for one in pinned}
    lock = {name: str(one.specifier) for name, (one, _) in locked().items()}
    assert {name: version for name, version in lock.items() if versions.get(name, version) != version} == {}
    # Beyond them only what other systems than that of `make` need: older Pythons, Windows, a browser.
    assert all(locked()[name][0].marker for name in lock.keys() - versions.keys())


def test_the_lock_has_what_we_and_our_extras_ask_for_and_what_builds_us():
    project = PROJECT["project"]
    asked = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    asked += [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    for requirement in map(Requirement, asked):
        found, _ = locked()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(str(found.specifier).removeprefix("=="), prereleases=True)


@pytest.mark.parametrize("file", ["action.yml", "docs/ci.md", "producer/templates/workflow.yml"])
def test_actions_of_others_are_named_by_commit_with_their_version_beside_it(file):
    used = re.findall(r"uses: (actions/.*)", (ROOT / file).read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
