"""Rankings: candidates for a skill, proposed and scored by another tool, each made into a skill to compare.

A ranking is a JSON file with `run_id`, `target.path` (the skill to improve) and `scored_candidates`; docs/ranking.md
lists every field. Only candidates that are asked for are looked at, each for itself: one that is wrong says nothing
about the others. Relative paths are looked up beside the ranking file first, then in the working folder. Nothing is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from aggregate.text import files
from aggregate.text.files import exists
from judges.errors import UpliftError
from judges.safe_text import NotJson, broken_fields, did_you_mean, strict_json
from producer.skills import edit_plan
from producer.skills import skill as skills
from producer.skills.edit_plan import ExecutionPlan, PlanFailed
from producer.skills.skill import InvalidSkill, Skill

MAX_RANKING_BYTES = 16 * 1024 * 1024
MAX_CANDIDATES = 1_000
MAX_ID = 200
ALL = "all"
DEFAULT_LANE = "generic-skill"
TEXT_FIELDS = ("skill_content", "content", "body")


class InvalidRanking(UpliftError):
    """A ranking, or one candidate of it, that cannot be used: one line with place, value and remedy."""


class NobodyCanApply(Exception):
    """A candidate that says itself that nobody can apply it."""


class _Shape(BaseModel):
    # Rankings come from other tools, which may say more than is asked here.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class Named(_Shape):
    """What a candidate needs in order to be asked for."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]

    @field_validator("id")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not text.isprintable() or text != text.strip():
            raise ValueError("must be printable and not start or end with a space")
        return text


class Scored(Named):
    """What it needs in order to be held against the threshold."""

    score: float


class Candidate(Scored):
    """One proposal: its text in one of several forms, the file that its plan edits, and whether anybody can do that."""

    skill_content: str | None = None
    content: str | None = None
    body: str | None = None
    skill_path: str | None = None
    target_path: str | None = None
    executor_support: bool | None = None
    execution_plan: ExecutionPlan | None = None


class Target(_Shape):
    """The skill to improve."""

    path: Annotated[str, Field(min_length=1)]


class RankingFile(_Shape):
    """A ranking file, but for what its candidates say."""

    run_id: Annotated[str, Field(min_length=1)]
    lane: Annotated[str | None, Field(min_length=1, max_length=MAX_ID)] = None
    target: Target
    scored_candidates: Annotated[list[Any], Field(min_length=1, max_length=MAX_CANDIDATES)]


@dataclass(frozen=True)
class Ranking:
    """A ranking file's content: `run_id` may be any text, `target` is a path as it was written."""

    path: Path
    run_id: str
    lane: str
    target: str
    entries: tuple[Any, ...]


@dataclass(frozen=True)
class Entry:
    """A candidate that was asked for; nothing but its id has been checked."""

    id: str
    number: int
    content: Mapping[str, Any]


_Model = TypeVar("_Model", bound=BaseModel)


def load(path: Path) -> Ranking:
    """Read a ranking; raises InvalidRanking. Neither the target nor any candidate is looked at yet."""
    content = _read(RankingFile, _parsed(path), path)
    lane = content.lane or DEFAULT_LANE
    return Ranking(path, content.run_id, lane, content.target.path, tuple(content.scored_candidates))


def select(ranking: Ranking, wanted: Sequence[str]) -> tuple[Entry, ...]:
    """The candidates with these ids, each once, in the order asked for; `all` stands for every one.

    Raises InvalidRanking for an id that is not there, which lists those that are, and for one that occurs twice.
    """
    if ALL in wanted:
        wanted = [
            _read(Named, each, ranking.path, ("scored_candidates", number)).id
            for number, each in enumerate(ranking.entries)
        ]
    return tuple(_entry(ranking, each) for each in dict.fromkeys(wanted))


def score(ranking: Ranking, entry: Entry) -> float:
    """The candidate's score; raises InvalidRanking."""
    return _read(Scored, entry.content, ranking.path, ("scored_candidates", entry.number)).score


def baseline(ranking: Ranking) -> Skill:
    """The skill at `target.path`; raises InvalidSkill."""
    return skills.load(_resolved(ranking, ranking.target))


def skill(ranking: Ranking, entry: Entry, target: Skill) -> Skill:
    """The candidate as a skill: the target's folder with the candidate's text, or with its edit made.

    Its text is the first of `skill_content`, `content`, `body`, `skill_path` and `execution_plan` that is there and
    not blank. Given text that has no front matter gets the target's. Raises NobodyCanApply where the candidate says
    so, InvalidRanking where there is no text, where a plan cannot be carried out and where nothing is changed, and
    InvalidSkill where the text is not a skill.
    """
    place, where = f"{ranking.path}: candidate {entry.id!r}", ("scored_candidates", entry.number)
    if not _has_text(entry):
        _refuse_unsupported(entry)
    chosen = _read(Candidate, entry.content, ranking.path, where)
    file = _edited_file(ranking, chosen, target, place)
    if not _has_text(entry):
        return _planned(chosen, target, file, place)
    if file != target.path:
        raise InvalidRanking(
            f"{place} gives a whole {skills.FILE_NAME}, but its target_path is {chosen.target_path!r}; "
            "leave one of them out, or edit that file with an execution_plan"
        )
    text, warnings = _text(ranking, chosen, target, place)
    _refuse_same(text, target.text, place)
    candidate = skills.with_text(target, text, place=place)
    return replace(candidate, warnings=(*candidate.warnings, *warnings))


def _entry(ranking: Ranking, wanted: str) -> Entry:
    ids = [each.get("id") if isinstance(each, dict) else None for each in ranking.entries]
    numbers = [number for number, each in enumerate(ids) if each == wanted]
    if len(numbers) > 1:
        raise InvalidRanking(
            f"{ranking.path}: scored_candidates[{numbers[1]}].id: {wanted!r} occurs twice; ids are unique"
        )
    if numbers:
        number, content = numbers[0], ranking.entries[numbers[0]]
        named = _read(Named, content, ranking.path, ("scored_candidates", number))
        return Entry(named.id, number, content)
    known = [each for each in ids if isinstance(each, str)]
    listed = ", ".join(map(repr, known[:20])) + (", …" if len(known) > 20 else "")
    raise InvalidRanking(
        f"{ranking.path}: no candidate {wanted!r}; there are {listed}{did_you_mean(wanted, known)}"
    )


def _has_text(entry: Entry) -> bool:
    given = (entry.content.get(field) for field in (*TEXT_FIELDS, "skill_path"))
    return any(isinstance(text, str) and text.strip() for text in given)


def _refuse_unsupported(entry: Entry) -> None:
    plan = entry.content.get("execution_plan")
    action = plan.get("action") if isinstance(plan, dict) else None
    if isinstance(action, str) and action.startswith(edit_plan.UNSUPPORTED):
        raise NobodyCanApply(f"the candidate says that nobody can apply it: its action is {action[:80]!r}")
    if entry.content.get("executor_support") is False:
        raise NobodyCanApply("the candidate says that nobody can apply it: executor_support is false")


def _edited_file(ranking: Ranking, chosen: Candidate, target: Skill, place: str) -> Path:
    """The file that a plan edits: the one that `target_path` names in the skill's folder, else the SKILL.md."""
    if chosen.target_path is None or not chosen.target_path.strip():
        return target.path
    home = target.folder or target.path.parent
    inside = home / chosen.target_path
    try:
        file = (inside if inside.exists() else _resolved(ranking, chosen.target_path)).resolve()
        if file in (target.path.resolve(), home.resolve()):
            return target.path
        exists = file.is_file()
    except (OSError, ValueError):
        exists = False
    if not exists:
        raise InvalidRanking(f"{place}: target_path: no such file: {chosen.target_path[:200]!r}")
    if target.folder is None or not file.is_relative_to(home.resolve()):
        raise InvalidRanking(
            f"{place}: target_path: {chosen.target_path[:200]!r} is no part of the skill {ranking.target}"
        )
    return file


def _planned(chosen: Candidate, target: Skill, file: Path, place: str) -> Skill:
    if chosen.execution_plan is None:
        fields = ", ".join((*TEXT_FIELDS, "skill_path"))
        raise InvalidRanking(f"{place} has no text; give one of {fields} or an execution_plan")
    before = target.text if file == target.path else skills.read_text(file)
    try:
        text = edit_plan.apply(chosen.execution_plan, before)
    except PlanFailed as error:
        raise InvalidRanking(f"{place}: execution_plan: {error}") from error
    _refuse_same(text, before, place)
    if file == target.path:
        return skills.with_text(target, text, place=place)
    return skills.with_edited(target, file, text, place=place)


def _refuse_same(text: str, before: str, place: str) -> None:
    if text == before:
        raise InvalidRanking(f"{place} has the baseline's very text; comparing the two would say nothing")


def _text(ranking: Ranking, chosen: Candidate, target: Skill, place: str) -> tuple[str, list[str]]:
    for field in TEXT_FIELDS:
        given = getattr(chosen, field)
        if given and given.strip():
            return _with_front_matter(given, target), []
    assert chosen.skill_path is not None
    try:
        other = skills.load(_resolved(ranking, chosen.skill_path))
    except InvalidSkill as error:
        raise InvalidRanking(f"{place}: skill_path: {error}") from error
    return _with_front_matter(other.text, target), _left_behind(other, place)


def _with_front_matter(text: str, target: Skill) -> str:
    if not skills.is_absent(text) or skills.is_absent(target.text):
        return text
    head = target.text[: skills.read(target.text).body]
    return (head if head.endswith("\n") else head + "\n") + text


def _read(model: type[_Model], value: Any, path: Path, where: tuple[str | int, ...] = ()) -> _Model:
    """The value as this model; raises InvalidRanking that names the first thing that is wrong, and its place."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *others = broken_fields(error, whole="the top level", above=where)
        more = f" (and {len(others)} more)" if others else ""
        raise InvalidRanking(f"{path}: {first}{more}") from error


def _left_behind(other: Skill, place: str) -> list[str]:
    if other.folder is None or not any(child.name != skills.FILE_NAME for child in other.folder.iterdir()):
        return []
    return [
        f"{place}: only the {skills.FILE_NAME} of {other.folder} is compared, with the target's other files"
    ]


def _resolved(ranking: Ranking, path: str) -> Path:
    beside = ranking.path.parent / path
    try:
        return beside if exists(beside) else Path(path)
    except OSError:  # whoever reads it says why not
        return beside


def _parsed(path: Path) -> Any:
    try:
        data = files.read(path, MAX_RANKING_BYTES, pipes=True)
    except FileNotFoundError as error:
        raise InvalidRanking(
            f"ranking not found: {path}; give the JSON file that ranks the candidates"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidRanking(f"ranking {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    try:
        return strict_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidRanking(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except NotJson as error:
        raise InvalidRanking(f"{path}: {error}") from error
