"""What may not be looked at is never told as missing, on any Python; root may look everywhere, so it is imitated."""

import os
from pathlib import Path

import pytest
from builders import an_artifact

from aggregate.text import files
from producer import plan
from producer.display import attempts, run_list
from producer.importers import harbor
from producer.runs import collect, from_records, rejudge
from producer.settings.run_settings import RunSettings
from producer.skills import ranking, skill
from producer.skills.skill import InvalidSkill
from producer.state_root import Places


@pytest.fixture
def forbidden(tmp_path, monkeypatch):
    """A folder into which nobody may look, on a Python whose Path methods call that missing, as 3.14 does."""
    folder, real = tmp_path / "forbidden", os.stat
    (folder / "skill").mkdir(parents=True)
    (folder / "skill" / "SKILL.md").write_text("---\nname: a\ndescription: b\n---\nText.\n")

    def stat(path, *args, **options):
        if isinstance(path, str | Path) and folder in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", stat)
    for name in ("exists", "is_file", "is_dir"):
        monkeypatch.setattr(Path, name, quiet(getattr(Path, name)))
    assert not (folder / "skill").exists()
    return folder


def quiet(method):
    def ask(self):
        try:
            return method(self)
        except OSError:
            return False

    return ask


def test_what_is_missing_is_told_from_what_may_not_be_looked_at(forbidden, tmp_path):
    (tmp_path / "file").write_text("")
    for ask in (files.exists, files.is_file, files.is_folder):
        assert not ask(tmp_path / "nowhere")
        assert not ask(tmp_path / "file" / "below")
        assert not ask(Path("a\0b"))
        with pytest.raises(PermissionError):
            ask(forbidden / "skill")
        with pytest.raises(OSError, match="too long"):
            ask(tmp_path / ("x" * 5000))
    assert files.is_file(tmp_path / "file")
    assert files.is_folder(tmp_path)
    assert not files.is_file(tmp_path)
    assert files.exists(tmp_path)


@pytest.mark.parametrize("name", ["skill", "skill/SKILL.md", "nothing"])
def test_a_skill_that_may_not_be_read_is_not_called_missing(forbidden, name):
    with pytest.raises(InvalidSkill, match=r"skill .* cannot be read: Permission denied"):
        skill.load(forbidden / name)


@pytest.mark.skipif(os.getuid() == 0, reason="root may look everywhere")
def test_a_skill_that_may_really_not_be_read_is_not_called_missing(tmp_path):
    folder = tmp_path / "closed"
    (folder / "skill").mkdir(parents=True)
    folder.chmod(0)
    try:
        with pytest.raises(InvalidSkill, match=r"skill .* cannot be read: Permission denied"):
            skill.load(folder / "skill")
    finally:
        folder.chmod(0o700)


A_RUN = an_artifact(verdict="pass", run_id="run-1")


@pytest.mark.parametrize(
    "look",
    [
        lambda root: attempts.of_task(Places(root), None, "run-1", "task"),
        lambda root: run_list.delete(Places(root), None, "run-1"),
        lambda root: Places(root).has_notes("run-1"),
        lambda root: from_records.compare_runs("run-1", "run-1", Places(root), margin=0.05),
        lambda root: rejudge.plan([A_RUN], Places(root), RunSettings()),
        lambda root: collect.write_report([A_RUN], Places(root), "md"),
        lambda root: plan.fixtures_of(root / "suite"),
        lambda root: harbor.convert(root / "tasks"),
    ],
)
def test_runs_and_files_that_may_not_be_looked_at_are_not_called_missing(forbidden, look):
    with pytest.raises(PermissionError):
        look(forbidden)


def test_a_candidate_beside_its_ranking_that_may_not_be_read_is_the_one_that_is_named(forbidden):
    made = ranking.Ranking(forbidden / "ranking.json", "run-1", "generic-skill", "skill", ())
    assert ranking._resolved(made, "skill") == forbidden / "skill"
