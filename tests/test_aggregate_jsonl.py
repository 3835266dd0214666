"""Records from anywhere are read as they are, or refused with every place named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from aggregate.records.jsonl import MAX_PROBLEMS, RecordsError, read_jsonl, schema
from aggregate.text.formats import plain

REQUIRED = {"task": "t", "arm": "candidate", "attempt": 1, "outcome": "passed"}


def a_line(**fields: object) -> str:
    return json.dumps({**REQUIRED, **fields})


def written(folder: Path, *lines: str) -> Path:
    path = folder / "records.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(RecordsError) as caught:
        list(read_jsonl(path))
    return [problem.removeprefix(str(path)) for problem in caught.value.problems]


def test_only_task_arm_attempt_and_outcome_are_required_and_the_rest_stays_missing(tmp_path):
    (record,) = read_jsonl(written(tmp_path, a_line()))
    assert (record.task, record.arm, record.attempt, record.outcome) == ("t", "candidate", 1, "passed")
    assert record.score is None
    assert record.completion is None


def test_blank_lines_a_bom_crlf_and_gzip_are_read(tmp_path):
    text = "\ufeff" + a_line() + "\r\n\r\n" + a_line(attempt=2) + "\r\n"
    plain_file, packed = tmp_path / "r.jsonl", tmp_path / "r.jsonl.gz"
    plain_file.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    assert [record.attempt for record in read_jsonl(plain_file)] == [1, 2]
    assert [record.attempt for record in read_jsonl(packed)] == [1, 2]


def test_all_problems_are_named_at_once_with_line_and_path(tmp_path):
    path = written(
        tmp_path,
        a_line(),
        "not json",
        a_line(attempt=0),
        a_line(attempt=2, arm="candidat"),
        '{"task": "t", "arm": "baseline", "attempt": 1, "outcome": "won"}',
        a_line(attempt=3, judgments=[{"judge": "contains", "score": "high"}]),
    )
    found = problems_of(path)
    assert [problem.split(":")[1] for problem in found] == ["2", "3", "4", "5", "6"]
    assert found[0].startswith(":2: record: invalid JSON")
    assert found[1].startswith(":3: attempt: is 0; must be at least 1")
    assert found[2] == (
        ":4: arm: unknown arm 'candidat'; allowed: baseline, candidate, candidate:<id>, oracle "
        "(did you mean candidate?)"
    )
    assert found[3].startswith(":5: outcome: is 'won'; must be 'passed'")
    assert found[4].startswith(":6: judgments[0].score: is 'high'; must be a number")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('{"task":"t","arm":"candidate","attempt":1,"outcome":"passed","score":NaN}', "score"),
        ('{"task":"t","arm":"candidate","attempt":1,"outcome":"passed","score":Infinity}', "score"),
        ('{"task":"t","arm":"candidate","attempt":1,"outcome":"passed","model_ms":1e999}', "model_ms"),
        (a_line(score=-0.5), "score"),
        (a_line(score=1.5), "score"),
        (a_line(score=True), "score"),
        (a_line(model_ms=-1), "model_ms"),
        (a_line(completion={"cost_usd": -0.01}), "completion.cost_usd"),
        (a_line(completion={"cost_usd": 1e300}), "completion.cost_usd"),
        (a_line(completion={"input_tokens": -3}), "completion.input_tokens"),
        (a_line(judgments=[{"judge": "x", "score": 2.0}]), "judgments[0].score"),
        (
            a_line(judgments=[{"judge": "x", "panel": [{"judge": "y", "cost_usd": -1.0}]}]),
            "judgments[0].panel[0].cost_usd",
        ),
        (
            a_line(judgments=[{"judge": "x", "criteria": [{"name": "c", "achieved": -1.0}]}]),
            "judgments[0].criteria[0].achieved",
        ),
        (a_line(benchmarks=[{"name": "b", "nop_median": -1.0}]), "benchmarks[0].nop_median"),
        (a_line(tests={"failed": -1}), "tests.failed"),
        (a_line(attempt=10**40), "attempt"),
        ("[1, 2]", "record"),
        ('"text"', "record"),
        ("[" * 100_000, "record"),
    ],
)
def test_a_number_that_cannot_have_been_measured_is_a_located_error(tmp_path, line, place):
    (problem, *_) = problems_of(written(tmp_path, line))
    assert problem.startswith(f":1: {place}: ")


def test_an_attempt_that_appears_twice_is_an_error_but_two_runs_may_share_its_number(tmp_path):
    path = written(tmp_path, a_line(run_id="a"), a_line(run_id="b"))
    assert len(list(read_jsonl(path))) == 2
    path = written(tmp_path, a_line(run_id="a"), a_line(run_id="b"), a_line(run_id="a", score=0.5))
    assert problems_of(path) == [
        ":3: record: attempt 1 of task t, arm candidate is already on line 1; every attempt has one record"
    ]


def test_bytes_that_are_no_text_are_a_located_error(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(a_line().encode() + b"\n\xff\xfe\x00\n")
    assert problems_of(path)[0].startswith(":2: record: invalid JSON")


def test_a_missing_file_and_a_broken_gzip_are_named(tmp_path):
    assert problems_of(tmp_path / "none.jsonl") == [": records not found"]
    broken = tmp_path / "r.jsonl.gz"
    broken.write_bytes(gzip.compress(a_line().encode())[:-12])
    (problem,) = problems_of(broken)
    assert problem.startswith(": cannot be read: ")
    broken.write_bytes(b"not gzip at all")
    (problem,) = problems_of(broken)
    assert problem.startswith(":1: record: invalid JSON")


def test_the_list_of_problems_ends_after_fifty(tmp_path):
    found = problems_of(written(tmp_path, *["nonsense"] * 200))
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == ": more problems follow; the first 50 are shown"


def test_nothing_is_yielded_after_the_first_problem(tmp_path):
    path = written(tmp_path, a_line(), "nonsense", a_line(attempt=2))
    reader = read_jsonl(path)
    assert next(reader).attempt == 1
    with pytest.raises(RecordsError):
        next(reader)


def test_escapes_in_a_record_do_not_reach_the_message(tmp_path):
    (problem,) = problems_of(written(tmp_path, a_line(arm="\x1b[31mred\u202e")))
    assert problem.startswith(":1: arm: unknown arm 'red'; allowed")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("a\x1b[31mb\x1b[0m", "ab"),
        ("a\x1b]8;;http://x\x07link\x1b]8;;\x07", "alink"),
        ("a\u202eb\u200bc\u2066d", "abcd"),
        ("two\nlines\tand\rmore", "two lines and more"),
        ("\x9b31mred", "red"),
        ("nul\0byte\x7f", "nulbyte"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("Grüße 你好 ✓", "Grüße 你好 ✓"),
    ],
)
def test_plain_text_keeps_what_can_be_seen_and_nothing_else(text, expected):
    assert plain(text) == expected


def test_plain_text_is_cut_at_its_limit_with_a_mark():
    assert plain("abcdef", 4) == "abc…"
    assert plain("abcd", 4) == "abcd"


def test_the_published_schema_is_a_json_schema_that_names_its_version():
    Draft202012Validator.check_schema(schema())
    assert schema()["title"] == "Uplift record, version 1.0"


NOTHING = {"tags": None, "judgments": None, "completion": None, "cached": None, "tests": None, "tier": None}


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({}, True),
        (NOTHING, True),
        ({"surprise": 1}, True),
        ({"outcome": "maybe"}, False),
        ({"attempt": 0}, False),
        ({"attempt": None}, False),
        ({"task": ""}, False),
        ({"score": 1}, True),
        ({"score": 1.01}, False),
        ({"score": True}, False),
        ({"model_ms": -1}, False),
        ({"model_ms": 10**13}, False),
        ({"deliveries": "3"}, False),
        ({"completion": {"cost_usd": 10**9, "turns": 0, "text": None}}, True),
        ({"completion": {"cost_usd": -0.01}}, False),
        ({"completion": {"turns": 10**12 + 1}}, False),
        ({"judgments": [{"judge": "contains", "score": 0.5, "matched": ["a"]}]}, True),
        ({"judgments": [{"score": 0.5}]}, False),
        ({"judgments": [{"judge": "x", "criteria": [{"name": "c", "achieved": -1}]}]}, False),
        ({"judgments": [{"judge": "x", "panel": [{"judge": "y", "score": 2}]}]}, False),
        (
            {"judgments": [{"judge": "x", "panel": [{"judge": "y", "panel": [{"judge": "z", "score": 2}]}]}]},
            False,
        ),
        ({"benchmarks": [{"name": "b", "nop_median": 1e10}]}, False),
        ({"tests": {"failed": -1}}, False),
        ({"snapshot": {"pass_to_fail": 10**13}}, False),
    ],
)
def test_reader_and_published_schema_accept_the_same(tmp_path, fields, accepted):
    line = a_line(**fields)
    assert Draft202012Validator(schema()).is_valid(json.loads(line)) is accepted
    path = written(tmp_path, line)
    if accepted:
        assert len(list(read_jsonl(path))) == 1
    else:
        assert problems_of(path)


def test_an_artifact_in_place_of_records_is_told_in_one_line(tmp_path):
    (tmp_path / "a.json").write_text('{\n  "schema_version": "1.0",\n  "run_id": "r"\n}\n')
    with pytest.raises(RecordsError, match="an artifact perhaps; give a run's id, or records") as refused:
        list(read_jsonl(tmp_path / "a.json"))
    assert len(refused.value.problems) == 1
