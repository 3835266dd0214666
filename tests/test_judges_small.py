"""The small deterministic judges: what passes, what fails, and what a hostile pattern or schema cannot do."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from judges import judge, safe_patterns, safe_schemas, text_judge
from judges.judgment import Completion, Judgment, Workspace, time_limit
from judges.spec import Equals, JsonSchema, JudgeSpec, Regex
from workers.models.choose import model_for
from workers.models.model import Request
from workers.models.sim import Sim, missing_reply
from workers.store.messages import ModelSettings, Task

CATASTROPHE = "a" * 5000 + "b"


async def no_model(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("a deterministic judge asked a model")


async def judged(spec: JudgeSpec, text: str, suite: Path | None = None) -> Judgment:
    return await judge(spec, Completion(text=text), no_model, Workspace(suite=suite))


def checked(spec: JudgeSpec, text: str) -> Judgment:
    check = text_judge(spec, Workspace())
    assert check is not None
    return check(text)


async def test_a_quoted_lone_surrogate_can_be_stored() -> None:
    spec = JsonSchema(type="json-schema", inline={"additionalProperties": {"type": "string"}})
    judgment = await judged(spec, '{"Hell\\ud83d": 1}')
    assert judgment.passed is False
    assert "Hell?" in json.loads(judgment.model_dump_json())["details"]


def a_regex(pattern: str, **fields: Any) -> Regex:
    return Regex(type="regex", pattern=pattern, **fields)


def an_equals(text: str, **fields: Any) -> Equals:
    return Equals(type="equals", text=text, **fields)


def a_schema(schema: dict[str, Any]) -> JsonSchema:
    return JsonSchema(type="json-schema", inline=schema)


@pytest.mark.parametrize(
    ("spec", "text", "passed"),
    [
        (a_regex(r"\d{4}-\d\d-\d\d"), "on 2026-03-03.", True),
        (a_regex(r"\d{4}-\d\d-\d\d"), "on March 3rd", False),
        (a_regex("^## "), "intro\n## Added", False),
        (a_regex("^## ", multiline=True), "intro\n## Added", True),
        (a_regex("added"), "## ADDED", False),
        (a_regex("added", ignore_case=True), "## ADDED", True),
        (a_regex("sorry", should_match=False), "Here it is.", True),
        (a_regex("sorry", should_match=False), "I am sorry.", False),
        (a_regex("(?<year>[0-9]{4})"), "2026", True),
        (a_regex("[[x]"), "[", True),
    ],
)
async def test_a_pattern_is_searched_in_the_whole_output(spec: Regex, text: str, passed: bool) -> None:
    judgment = await judged(spec, text)
    assert (judgment.judge, judgment.passed, judgment.score) == ("regex", passed, float(passed))
    assert (judgment.matched, judgment.missed) == (((spec.pattern,), ()) if passed else ((), (spec.pattern,)))


async def test_a_match_is_told_with_its_place() -> None:
    assert (await judged(a_regex("i[oO]S"), "for iOS")).details == "matches at character 5: 'iOS'"
    assert (await judged(a_regex("iOS"), "for web")).details == "no match for 'iOS'"


@pytest.mark.parametrize("should_match", [True, False])
async def test_an_output_that_a_pattern_takes_too_long_on_has_failed(should_match: bool) -> None:
    judgment = await judged(a_regex("(a+)+$", should_match=should_match), CATASTROPHE)
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None)
    assert "not judged within 1 s; avoid repetitions inside repetitions" in judgment.details


def test_what_other_threads_use_is_not_held_against_a_pattern() -> None:
    class Interrupted:
        """A pattern that finds nothing at first, because others used up the process's time."""

        def __init__(self) -> None:
            self.allowed: list[float] = []

        def search(self, text: str, timeout: float, concurrent: bool) -> str:
            self.allowed.append(timeout)
            if len(self.allowed) < 3:
                raise TimeoutError
            return text

    pattern = Interrupted()
    with time_limit():
        assert safe_patterns.search(pattern, "found") == "found"
    assert pattern.allowed == sorted(pattern.allowed)


def test_other_threads_run_while_a_hostile_pattern_is_matched() -> None:
    slow = threading.Thread(target=lambda: checked(a_regex("(a+)+$"), CATASTROPHE))
    slow.start()
    # It can end only by its time limit; were it to stop the others, this line would be reached after that.
    assert slow.is_alive()
    slow.join()


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a", "missing )"),
        ("a{2,1}", "not a regular expression"),
        ("(?:" * 499 + "a" + ")" * 499, "nested too deeply"),
        ("(?:(?:a{1000}){1000}){1000}", "more than 1,000,000 times"),
        ("a{99999999999}", "more than 1,000,000 times"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_before_anything_runs(pattern: str, said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        a_regex(pattern)


def test_a_pattern_has_at_most_2000_characters() -> None:
    with pytest.raises(ValidationError, match="at most 2000 characters"):
        a_regex("a" * 2001)


@pytest.mark.parametrize(
    ("spec", "text", "passed"),
    [
        (an_equals("42"), "42", True),
        (an_equals("42"), "\n 42 \n", True),
        (an_equals("42\n"), "42", True),
        (an_equals("a\nb"), "a\r\nb", True),
        (an_equals("42"), "The answer is 42", False),
        (an_equals("Yes"), "yes", False),
        (an_equals("Straße", ignore_case=True), "STRASSE", True),
        (an_equals("a b"), "a  b", False),
        (an_equals("a b", ignore_whitespace=True), "a \n\t b", True),
        (an_equals("ab", ignore_whitespace=True), "a b", False),
        (an_equals("caf\u00e9"), "cafe\u0301", True),
    ],
)
async def test_an_output_equals_a_text_but_for_what_does_not_count(
    spec: Equals, text: str, passed: bool
) -> None:
    judgment = await judged(spec, text)
    assert (judgment.judge, judgment.passed, judgment.score) == ("equals", passed, float(passed))


async def test_the_first_difference_is_told() -> None:
    assert (await judged(an_equals("Paris"), "Pasta")).details == (
        "differs at character 3: expected 'ris', got 'sta'"
    )
    assert (await judged(an_equals("Paris"), "")).details == (
        "differs at character 1: expected 'Paris', got the end"
    )


PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "Ada"}', None),
        ('```json\n{"name": "Ada", "age": 36}\n```', None),
        ('Here you are:\n\n```\n{"name": "Ada"}\n```\nAnything else?', None),
        ('{"name": "ada"}', "/name: 'ada' does not match '^[A-Z]'"),
        ('{"name": "Ada", "age": -1}', "/age: -1 is less than the minimum of 0"),
        ('{"name": "Ada", "sex": "f"}', "the whole: unexpected properties: 'sex'"),
        ("{}", "the whole: 'name' is a required property"),
        ("Ada", "not JSON: Expecting value at line 1, column 1"),
        ('{"name": "Ada", "name": "Bob"}', "not usable as JSON: key 'name' occurs twice"),
        ('{"name": NaN}', "not JSON: NaN is not a JSON number"),
        ('```\n{"name": "Ada"}\n```\nor\n```\n{"name": "Bob"}\n```', "not JSON"),
        ('Sure: {"name": "Ada"}', "not JSON"),
        ("[" * 100_000, "not usable as JSON: nested too deeply"),
        ("9" * 5000, "not usable as JSON"),
    ],
)
async def test_an_output_is_json_alone_or_in_the_one_code_fence(text: str, said: str | None) -> None:
    judgment = await judged(a_schema(PERSON), text)
    assert (judgment.passed, judgment.score) == (said is None, float(said is None))
    assert judgment.details.startswith(said or "satisfies the schema")


async def test_an_empty_schema_asks_for_any_json() -> None:
    assert (await judged(a_schema({}), "[1, null]")).passed is True
    assert (await judged(a_schema({}), "one")).passed is False


async def test_a_schema_may_lie_in_the_suites_fixtures(tmp_path: Path) -> None:
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "fixtures/person.json").write_text(json.dumps(PERSON))
    spec = JsonSchema(type="json-schema", schema_file="fixtures/person.json")
    assert (await judged(spec, '{"name": "Ada"}', tmp_path)).passed is True
    assert (await judged(spec, "{}", tmp_path)).passed is False


async def test_a_schema_file_that_leaves_the_fixtures_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    spec = JsonSchema(type="json-schema", schema_file="fixtures/../secret.json")
    judgment = await judged(spec, "{}", tmp_path)
    assert judgment.passed is None
    assert "not a file in the suite's fixtures" in (judgment.error or "")


def doubling(levels: int) -> dict[str, Any]:
    """A schema that asks for 2 ** levels checks of one value."""
    parts = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"pattern": "(a+)+$"}, json.dumps(CATASTROPHE)),
        ({"patternProperties": {"(a+)+$": {}}}, json.dumps({CATASTROPHE: 1})),
        (
            {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False},
            json.dumps({CATASTROPHE: 1}),
        ),
        ({**doubling(40), "if": {"type": "string"}}, "{}"),
    ],
)
async def test_an_output_that_a_schema_takes_too_long_on_has_failed(
    schema: dict[str, Any], text: str
) -> None:
    judgment = await judged(a_schema(schema), text)
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None)
    assert "not judged within 1 s" in judgment.details


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        ({"uniqueItems": True}, "[" * 900 + "]" * 900, "nested more than 100 deep"),
        ({"items": {"$ref": "#"}}, "[" * 900 + "]" * 900, "nested more than 100 deep"),
        ({"items": {"allOf": [{"anyOf": [{"$ref": "#"}]}]}}, "[" * 100 + "]" * 100, "nested too deeply"),
        ({"multipleOf": 0.01}, "1e400", "a number is too large"),
        ({"items": {"multipleOf": 0.01}}, f"[{'9' * 400}]", "a number is too large"),
    ],
)
async def test_a_value_that_cannot_be_checked_has_failed(
    schema: dict[str, Any], text: str, said: str
) -> None:
    judgment = await judged(a_schema(schema), text)
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.0, None)
    assert said in judgment.details


async def test_unique_items_are_found_in_a_long_list_of_mixed_things() -> None:
    items: list[Any] = [value for i in range(20_000) for value in (i, str(i), [i], {"i": i})]
    spec = a_schema({"uniqueItems": True})
    assert (await judged(spec, json.dumps(items))).passed is True
    assert (await judged(spec, json.dumps([*items, {"i": 7.0}]))).passed is False
    assert (await judged(spec, "[1, true, 0, false]")).passed is True


@pytest.mark.parametrize(
    ("schema", "path", "said"),
    [
        ({"type": "strin"}, ("type",), "not a JSON Schema"),
        ({"$ref": "https://example.com/a.json"}, ("$ref",), "nothing is fetched"),
        ({"items": {"$ref": "file:///etc/passwd"}}, ("items", "$ref"), "nothing is fetched"),
        ({"$ref": "#/$defs/none"}, (), "leads nowhere"),
        ({"$ref": "#"}, (), "without end"),
        (doubling(40), (), "takes too long to check even for an empty value"),
        ({"$schema": "https://example.com/draft"}, ("$schema",), "unknown draft"),
        (
            {"items": {"$schema": "http://json-schema.org/draft-07/schema#"}},
            ("items", "$schema"),
            "only the whole schema",
        ),
        ({"unevaluatedProperties": False}, ("unevaluatedProperties",), "not supported"),
        ({"patternProperties": {"(": {}}}, ("patternProperties", "("), "missing )"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_with_its_place(
    schema: dict[str, Any], path: tuple[str, ...], said: str
) -> None:
    ((where, message),) = safe_schemas.wrong_schema(schema)
    assert where == path
    assert said in message


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"$ref": "https://example.com/a.json", "pattern": "("}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"$ref": "#"}}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"properties": {"next": {"$ref": "#"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 0, "exclusiveMinimum": True},
    ],
)
def test_a_schema_that_can_be_used_has_nothing_wrong(schema: dict[str, Any]) -> None:
    assert list(safe_schemas.wrong_schema(schema)) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "Ab", "$ref"]),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "Ab"]), parts),
    max_leaves=8,
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"patternProperties": {"^A": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    {"type": ["array", "null"], "uniqueItems": True, "items": {"minimum": 0}},
    {"anyOf": [{"pattern": "^A"}, {"type": "boolean"}], "not": {"const": True}},
)


@given(values, st.sampled_from(SCHEMAS))
@settings(deadline=None, max_examples=300)
def test_what_we_check_ourselves_agrees_with_the_library(value: Any, schema: dict[str, Any]) -> None:
    import jsonschema

    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert checked(a_schema(schema), json.dumps(value)).passed is expected


@given(st.text(max_size=200))
@settings(deadline=None, max_examples=200)
def test_no_output_breaks_a_small_judge(text: str) -> None:
    for judgment in (checked(a_regex("a|b"), text), checked(a_schema({"type": "object"}), text)):
        assert judgment.error is None
        assert judgment.passed in (True, False)


def test_a_search_without_a_match_gives_none() -> None:
    with time_limit():
        assert safe_patterns.search(safe_patterns.compiled("x"), "abc") is None


def a_task(judge_spec: JudgeSpec) -> Task:
    return Task(id="t", prompt="p", judge=judge_spec)


@pytest.mark.parametrize(
    "spec",
    [
        an_equals("42"),
        an_equals("Simulated wrong answer."),
        a_regex("Paris"),
        a_regex(r"^1\.2\.0$"),
        a_regex("sorry", should_match=False),
        a_regex("Simulated", should_match=False),
        a_schema({}),
        a_schema({"type": "array"}),
    ],
)
@pytest.mark.parametrize("passes", [True, False])
async def test_the_simulated_model_answers_what_it_can_guess(spec: JudgeSpec, passes: bool) -> None:
    task = a_task(spec)
    assert missing_reply(task) is None
    sim = model_for(f"sim:candidate={int(passes)}", ModelSettings())
    assert isinstance(sim, Sim)
    said = await sim.complete(Request(prompt="p", task=task, arm="candidate", attempt=1))
    assert (await judged(spec, said.text)).passed is passes


@pytest.mark.parametrize(
    "spec",
    [
        a_regex(r"\d{4}-\d\d"),
        a_schema({"type": "object", "required": ["a"]}),
        JsonSchema(type="json-schema", schema_file="fixtures/a.json"),
    ],
)
def test_the_simulated_model_needs_replies_for_what_it_cannot_guess(spec: JudgeSpec) -> None:
    assert f"sim needs replies: {{pass: fixtures/…}} to answer a {spec.type} task" in (
        missing_reply(a_task(spec)) or ""
    )
