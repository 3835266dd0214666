"""Rankings: candidates for a skill, proposed and scored by another tool, each made into a skill to compare.

A ranking is a JSON file with `run_id`, `target.path` (the skill to improve) and `scored_candidates`. A
candidate's text is the first of `skill_content`, `content`, `body`, `skill_path` and `execution_plan` that is
there and not blank. Given text that has no front matter gets the target's. Relative paths are looked up
beside the ranking file first, then in the working folder. Nothing is written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from producer import execution_plan, front_matter, skills
from producer.execution_plan import ExecutionPlan, PlanFailed
from producer.skills import InvalidSkill, Skill

MAX_RANKING_BYTES = 16 * 1024 * 1024
MAX_CANDIDATES = 1_000
MAX_ID = 200
ALL = "all"
TEXT_FIELDS = ("skill_content", "content", "body")


class InvalidRanking(Exception):
    """A ranking that cannot be used: one line with place, value and remedy."""


class _Shape(BaseModel):
    # Rankings come from other tools, which may say more than is asked here.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class Candidate(_Shape):
    """One proposal: its id, its score, and its text in one of several forms."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]
    score: float
    skill_content: str | None = None
    content: str | None = None
    body: str | None = None
    skill_path: str | None = None
    execution_plan: ExecutionPlan | None = None

    @field_validator("id")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not text.isprintable() or text != text.strip():
            raise ValueError("must be printable and not start or end with a space")
        return text


class _Target(_Shape):
    path: Annotated[str, Field(min_length=1)]


class _File(_Shape):
    run_id: Annotated[str, Field(min_length=1)]
    target: _Target
    scored_candidates: Annotated[list[Candidate], Field(min_length=1, max_length=MAX_CANDIDATES)]


@dataclass(frozen=True)
class Ranking:
    """A ranking file's content: `run_id` may be any text, `target` is a path as it was written."""

    path: Path
    run_id: str
    target: str
    candidates: tuple[Candidate, ...]


def load(path: Path) -> Ranking:
    """Read a ranking; raises InvalidRanking. Neither the target nor any `skill_path` is looked at yet."""
    try:
        content = _File.model_validate(_parsed(path))
    except ValidationError as error:
        raise InvalidRanking(f"{path}: {_first_problem(error)}") from error
    seen: set[str] = set()
    for number, each in enumerate(content.scored_candidates):
        if each.id in seen:
            raise InvalidRanking(
                f"{path}: scored_candidates[{number}].id: {each.id!r} occurs twice; ids are unique"
            )
        seen.add(each.id)
    return Ranking(path, content.run_id, content.target.path, tuple(content.scored_candidates))


def candidate(ranking: Ranking, wanted: str) -> Candidate:
    """The candidate with this id; raises InvalidRanking, which lists those that there are."""
    for each in ranking.candidates:
        if each.id == wanted:
            return each
    ids = [each.id for each in ranking.candidates]
    close = get_close_matches(wanted, ids, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(map(repr, ids[:20])) + (", …" if len(ids) > 20 else "")
    raise InvalidRanking(f"{ranking.path}: no candidate {wanted!r}; there are {listed}{hint}")


def select(ranking: Ranking, wanted: Sequence[str]) -> tuple[Candidate, ...]:
    """The candidates with these ids, each once, in the order asked for; `all` stands for every one."""
    if ALL in wanted:
        return ranking.candidates
    return tuple(candidate(ranking, each) for each in dict.fromkeys(wanted))


def baseline(ranking: Ranking) -> Skill:
    """The skill at `target.path`; raises InvalidSkill."""
    return skills.load(_resolved(ranking, ranking.target))


def skill(ranking: Ranking, chosen: Candidate, target: Skill) -> Skill:
    """The candidate as a skill: the target's folder with the candidate's text as its SKILL.md.

    Raises InvalidRanking where there is no text, where a plan cannot be carried out and where the text is the
    target's own, and InvalidSkill where the text is not a skill.
    """
    place = f"{ranking.path}: candidate {chosen.id!r}"
    made, warnings = _text(ranking, chosen, target, place)
    if made == target.text:
        raise InvalidRanking(f"{place} has the baseline's very text; comparing the two would say nothing")
    result = skills.with_text(target, made, place=place)
    return replace(result, warnings=(*result.warnings, *warnings))


def _text(ranking: Ranking, chosen: Candidate, target: Skill, place: str) -> tuple[str, list[str]]:
    for field in TEXT_FIELDS:
        given = getattr(chosen, field)
        if given and given.strip():
            return _with_front_matter(given, target), []
    if chosen.skill_path and chosen.skill_path.strip():
        try:
            other = skills.load(_resolved(ranking, chosen.skill_path))
        except InvalidSkill as error:
            raise InvalidRanking(f"{place}: skill_path: {error}") from error
        return other.text, _left_behind(other, place)
    if chosen.execution_plan:
        try:
            return execution_plan.apply(chosen.execution_plan, target.text), []
        except PlanFailed as error:
            raise InvalidRanking(f"{place}: execution_plan: {error}") from error
    fields = ", ".join((*TEXT_FIELDS, "skill_path"))
    raise InvalidRanking(f"{place} has no text; give one of {fields} or an execution_plan")


def _with_front_matter(text: str, target: Skill) -> str:
    if not front_matter.is_absent(text):
        return text
    head = target.text[: front_matter.read(target.text).body]
    return (head if head.endswith("\n") else head + "\n") + text


def _left_behind(other: Skill, place: str) -> list[str]:
    if other.folder is None or not any(child.name != skills.FILE_NAME for child in other.folder.iterdir()):
        return []
    return [
        f"{place}: only the {skills.FILE_NAME} of {other.folder} is compared, with the target's other files"
    ]


def _resolved(ranking: Ranking, path: str) -> Path:
    beside = ranking.path.parent / path
    try:
        return beside if beside.exists() else Path(path)
    except (OSError, ValueError):
        return Path(path)


def _parsed(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RANKING_BYTES + 1)
    except FileNotFoundError as error:
        raise InvalidRanking(
            f"ranking not found: {path}; give the JSON file that ranks the candidates"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidRanking(f"ranking {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(data) > MAX_RANKING_BYTES:
        raise InvalidRanking(f"{path}: more than {MAX_RANKING_BYTES} bytes; a ranking is smaller than that")
    try:
        text = data.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidRanking(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise InvalidRanking(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg.lower()}") from error
    except RecursionError as error:
        raise InvalidRanking(f"{path}: nested too deeply to be a ranking") from error
    except ValueError as error:
        raise InvalidRanking(f"{path}: not standard JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice[:80]!r} occurs twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON knows")


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    path = ""
    for step in first["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    shown = "" if first["type"] == "missing" else f", not {_short(first['input'])}"
    others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    return f"{path or 'the top level'}: {message[0].lower()}{message[1:]}{shown}{others}"


def _short(value: object) -> str:
    shown = json.dumps(value) if not isinstance(value, dict | list) else type(value).__name__
    return shown if len(shown) <= 60 else shown[:60] + "…"
