"""The steps of attempts: from programs' own streams to documents that other tools accept.

The streams in tests/streams were printed by Claude Code 2.1.197 and codex 0.142 against the stand-in; some of the
programs were killed at their deadline.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory as Atif
from builders import a_record

from aggregate.records import atif
from aggregate.records.record import AttemptRecord, KeptSteps
from judges.judgment import Completion
from judges.trajectory import Step, ToolCall, Trajectory
from producer.display import attempts
from producer.runs import collect
from producer.state_root import Places
from workers.models.claude_code import Stream
from workers.models.command import PRESETS, Command
from workers.models.model import Request
from workers.models.steps import LONGEST_RESULT, MOST_CHARACTERS, MOST_STEPS, CodexEvents, Marks, Trace
from workers.store.messages import ModelSettings
from workers.store.run_store import pack_steps

STREAMS = Path(__file__).parent / "streams"
CLAUDE = {path.stem: path.read_bytes().splitlines() for path in sorted(STREAMS.glob("claude-*.jsonl"))}
CODEX = {path.stem: path.read_bytes().splitlines() for path in sorted(STREAMS.glob("codex-*.jsonl"))}
COMPACTED = json.dumps(
    {
        "type": "system",
        "subtype": "compact_boundary",
        "compact_metadata": {"trigger": "auto", "pre_tokens": 180_000},
    }
).encode()
# What kills, compactions, lost and repeated lines make of a stream that was printed whole.
CHANGED = {
    **{f"{name}, killed halfway": lines[: len(lines) // 2] for name, lines in CLAUDE.items()},
    **{f"{name}, cut in a line": [*lines[:-3], lines[-3][:40]] for name, lines in CLAUDE.items()},
    "compacted": [*CLAUDE["claude-bash"][:12], COMPACTED, *CLAUDE["claude-bash"][12:]],
    "without its first half": CLAUDE["claude-task"][13:],
    "every line twice": [line for line in CLAUDE["claude-task"] for _ in (1, 2)],
    "two streams in one": CLAUDE["claude-task"] + CLAUDE["claude-skill"],
}
ZEBRA = Marks(frozenset({"zebra-skill"}), frozenset({"always-mention-the-zebra"}))


def claude(lines: list[bytes]) -> tuple[Trajectory, Completion]:
    """What Claude Code's stream makes of an attempt whose program was asked something."""
    stream = Stream(trace := Trace())
    trace.step("user", "which platforms?")
    trace.watch([ZEBRA])
    for line in lines:
        stream.read(line)
    completion = stream.completion(ModelSettings())
    trajectory = trace.trajectory()
    assert trajectory is not None
    return trajectory, completion


def codex(lines: list[bytes]) -> tuple[Trajectory, Completion]:
    command, found = Command("codex:gpt-5", PRESETS["codex"], ModelSettings()), dict[str, Any]()
    events = CodexEvents(trace := Trace())
    trace.step("user", "which platforms?")
    trace.watch([ZEBRA])
    for line in lines:
        command._read_line(found, events, line)
    completion = events.paid(command._completion(found, Request("", trace=trace), cut=False))
    trajectory = trace.trajectory() or Trajectory()
    return trajectory, completion


ALL = {**CLAUDE, **CHANGED, **CODEX}


def check_sums(trajectory: Trajectory, completion: Completion) -> None:
    for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"):
        if (told := getattr(completion, name)) is not None:
            assert (trajectory.sum(name) or 0) == told, name


@pytest.mark.parametrize("name", ALL)
def test_a_stream_becomes_a_document_that_atif_accepts_and_its_tokens_are_the_records(name: str) -> None:
    trajectory, completion = (codex if name in CODEX else claude)(ALL[name])
    exported = Atif.model_validate(json.loads(json.dumps(atif.document(trajectory))))
    assert exported.schema_version == "ATIF-v1.8"
    check_sums(trajectory, completion)
    if completion.input_tokens is not None:
        assert exported.final_metrics is not None
        assert (exported.final_metrics.total_prompt_tokens or 0) == completion.input_tokens
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_there_are_forty_streams_of_both_programs() -> None:
    assert len(ALL) >= 40
    assert len(CLAUDE) >= 15
    assert len(CODEX) >= 5


def test_claude_codes_steps_have_what_was_said_called_and_given_back() -> None:
    trajectory, completion = claude(CLAUDE["claude-bash"])
    asked, *steps = trajectory.steps
    assert (asked.source, asked.text) == ("user", "which platforms?")
    calls = [step.calls[0] for step in steps[:3]]
    assert [(call.name, call.failed) for call in calls] == [("Bash", False), ("Bash", True), ("Read", True)]
    assert (calls[0].arguments, calls[0].result) == ({"command": "echo hi; ls"}, "hi\na.txt")
    assert steps[3].text == "done"
    assert [step.stop_reason for step in steps] == ["tool_use"] * 3 + ["end_turn"]
    assert [step.output_tokens for step in steps] == [5] * 4
    assert {step.model for step in steps} == {"claude-sonnet-4-5"}
    assert trajectory.facts() == {
        "tool_calls": {"Bash": 2, "Read": 1},
        "tool_errors": {"Bash": 1, "Read": 1},
        "stop_reason": "end_turn",
        "reasoning_tokens": None,
    }
    assert trajectory.ended
    assert completion.turns == 4


def test_steps_of_sub_agents_are_inside_the_call_that_they_work_for() -> None:
    trajectory, _ = claude(CLAUDE["claude-task-two"])
    helped = [call for call in trajectory.calls if call.name == "Task"]
    inner = [[step for step in trajectory.steps if step.within == call.number] for call in helped]
    assert [steps[0].text for steps in inner] == ["first", "second"]
    assert [[call.name for step in steps for call in step.calls] for steps in inner] == [["Bash"], ["Bash"]]
    document = Atif.model_validate(atif.document(trajectory))
    assert [one.steps[0].message for one in document.subagent_trajectories or []] == ["first", "second"]


def test_a_killed_attempt_keeps_its_steps_up_to_the_end() -> None:
    trajectory, completion = claude(CLAUDE["claude-killed-in-tool"])
    assert [(call.arguments["command"], call.result) for call in trajectory.calls] == [("sleep 30", None)]
    assert not trajectory.ended
    assert completion.truncated


def test_a_compaction_is_a_step() -> None:
    trajectory, _ = claude(CHANGED["compacted"])
    (one,) = [step for step in trajectory.steps if step.source == "system"]
    assert "compacted" in one.text
    assert "180000" in one.text


def test_codexs_commands_are_calls_with_their_output_and_failure() -> None:
    trajectory, _ = codex(CODEX["codex-bash"])
    calls = list(trajectory.calls)
    assert [(call.name, call.result, call.failed) for call in calls] == [
        ("command_execution", "hi\na.txt\nb.txt\n", False),
        ("command_execution", "", True),
    ]
    assert trajectory.steps[-1].text == "done"
    assert trajectory.sum("input_tokens") == 410


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("claude-skill", True),
        ("claude-skill-read", True),
        ("claude-bash", False),
        ("codex-skill", True),
        ("codex-bash", False),
    ],
)
def test_a_skill_is_loaded_by_its_tool_or_by_reading_its_file(name: str, loaded: bool) -> None:
    _, completion = (codex if name in CODEX else claude)(ALL[name])
    assert completion.skill_loaded is loaded


LINE = "always-mention-the-zebra"


@pytest.mark.parametrize(
    ("tool", "asked", "result", "failed", "loaded"),
    [
        ("Read", {"file_path": "/s/zebra-skill/SKILL.md"}, f"1→{LINE}", False, True),
        ("Read", {"file_path": "/s/zebra-skill/SKILL.md"}, f"1→{LINE}", True, False),
        ("Read", {"file_path": "/s/other/SKILL.md"}, "1→another skill", False, False),
        ("Bash", {"command": "ls /s/zebra-skill/SKILL.md"}, "/s/zebra-skill/SKILL.md", False, False),
        ("Bash", {"command": "cat notes.md"}, LINE, False, False),
        ("Write", {"file_path": "/s/zebra-skill/SKILL.md", "content": LINE}, LINE, False, False),
        ("Skill", {"skill": "/zebra-skill"}, "Launching", False, True),
        ("Skill", {"skill": "plugin:zebra-skill"}, "no such skill", True, False),
        ("Skill", {"skill": "other"}, f"SKILL.md {LINE}", False, False),
    ],
)
def test_another_skills_call_and_a_failed_one_are_no_load(
    tool: str, asked: dict[str, str], result: str, failed: bool, loaded: bool
) -> None:
    trace = Trace()
    trace.observed = True
    trace.watch([ZEBRA])
    trace.call(trace.step("agent"), "1", tool, asked)
    trace.result("1", result, failed=failed)
    assert trace.loaded is loaded


def test_where_nothing_is_told_or_watched_a_load_is_unknown() -> None:
    blind, deaf = Trace(), Trace()
    blind.observed = True
    deaf.watch([ZEBRA])
    assert (blind.loaded, deaf.loaded) == (None, None)


def test_long_results_are_cut_in_the_middle_and_say_so_after_secrets_are_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-canary-0123456789")
    trace = Trace()
    trace.observed = True
    trace.call(
        trace.step("agent", "key sk-canary-0123456789"), "1", "Bash", {"command": "echo sk-canary-0123456789"}
    )
    # The secret lies across the place of the cut.
    middle = "a" * (LONGEST_RESULT // 2 - 10) + "sk-canary-0123456789" + "b" * LONGEST_RESULT
    trace.result("1", middle, failed=False)
    trajectory = trace.trajectory()
    assert trajectory is not None
    (call,) = trajectory.calls
    assert "characters cut" in (call.result or "")
    assert len(call.result or "") < LONGEST_RESULT + 100
    told = trajectory.model_dump_json()
    assert "sk-canary" not in told
    assert "canary-0123" not in told
    assert call.arguments == {"command": "echo [redacted]"}


def test_the_skills_text_is_left_out_and_comes_back() -> None:
    text = "---\nname: z\n---\n" + "Say zebra, always. " * 30
    body = text.removeprefix("---\nname: z\n---\n")
    trace = Trace(text)
    trace.observed = True
    trace.step("user", f"Here is a skill:\n{text}\nand a question")
    trace.step("system", f"Base directory: /s\n\n{body}")
    kept = trace.trajectory()
    assert kept is not None
    assert "Say zebra" not in kept.model_dump_json()
    assert [step.text for step in kept.with_skill(text).steps] == [
        f"Here is a skill:\n{text}\nand a question",
        f"Base directory: /s\n\n{body}",
    ]


def test_what_atif_says_of_an_attempt_can_be_read_back() -> None:
    """The way of a declared program that leaves such a file."""
    for name in ("claude-task-two", "claude-bash", "claude-cached"):
        before, _ = claude(CLAUDE[name])
        trace = Trace()
        atif.note(json.loads(json.dumps(atif.document(before))), trace)
        after = trace.trajectory()
        assert after is not None
        assert after.sum("input_tokens") == before.sum("input_tokens")
        facts = [(call.name, call.arguments, call.result, call.failed) for call in before.calls]
        again = [(call.name, call.arguments, call.result, call.failed) for call in after.calls]
        assert sorted(map(str, again)) == sorted(map(str, facts))
        assert Atif.model_validate(atif.document(after))


def test_kept_steps_take_an_eighth_of_what_was_printed_at_most() -> None:
    for name, lines in CLAUDE.items():
        trajectory, _ = claude(lines)
        raw = sum(len(line) + 1 for line in lines)
        assert len(pack_steps(trajectory)[1]) <= raw / 8 + 300, name


NASTY = [
    "\x1b[2J\x1b]0;title\x07", "<script>alert(1)</script>", "\ud800 lone", "\x00\x07\x9f", "]]>", "'\"`${x}`",
    "a" * 200_000, "\u202e reversed", "‮" * 50, "\r\n" * 1000,
]  # fmt: skip


def hostile(number: int) -> list[bytes]:
    """A stream that tries something else for each number: fake ids, cycles of sub-agents, long and odd texts."""
    text, kind = NASTY[number % len(NASTY)], number % 7
    key = ["t1", "t1", text[:50], "", "call-1", "1", "t2"][kind]
    parent = [None, "t1", "t2", key, "t1", text[:50], "toolu"][number % 5]
    use = {
        "type": "tool_use",
        "id": key,
        "name": text if number % 3 else "Bash",
        "input": [text, {"a": text}, 3][kind % 3],
    }
    back = {
        "type": "tool_result",
        "tool_use_id": key,
        "content": [text, [{"type": "image"}], [text, 3]][kind % 3],
    }
    usage = {"input_tokens": [5, -5, "5", 10**30][number % 4], "output_tokens": number}
    said = {
        "id": f"m{number % 3}",
        "model": text[:99],
        "content": [use, {"type": "text", "text": text}],
        "usage": usage,
    }
    nested = {"type": "tool_use", "id": "t1", "name": "Task", "input": json.loads("[" * 200 + "]" * 200)}
    events = [
        {"type": "assistant", "message": said, "parent_tool_use_id": parent},
        {"type": "assistant", "message": {"id": "n", "content": [nested] * 210}, "parent_tool_use_id": "t1"},
        {"type": "user", "message": {"content": [back] * 2}, "parent_tool_use_id": parent},
        {"type": "user", "message": {"content": [{"type": "text", "text": text}]}, "parent_tool_use_id": key},
        {"type": "system", "subtype": "compact_boundary", "compact_metadata": text},
    ]
    return [json.dumps(event).encode() for event in events[number % 5 :] + events] * 2


@pytest.mark.parametrize("number", range(100))
def test_a_hostile_stream_is_bounded_and_still_a_document(number: int) -> None:
    trajectory, _ = claude(hostile(number))
    told = trajectory.model_dump_json()
    assert len(told) < 3 * MOST_CHARACTERS
    told.encode()
    Atif.model_validate(json.loads(json.dumps(atif.document(trajectory))))
    for step in trajectory.steps:
        assert step.within is None or step.within < min((call.number for call in step.calls), default=10**9)


def test_fifty_megabytes_of_a_result_are_a_few_thousand_characters() -> None:
    trace = Trace()
    trace.observed = True
    for number in range(10):
        trace.call(trace.step("agent"), str(number), "Bash", {"command": "x" * 10_000_000})
        trace.result(str(number), "x" * 20_000_000, failed=False)
    trajectory = trace.trajectory()
    assert trajectory is not None
    assert len(trajectory.model_dump_json()) < 500_000


def begin(key: str, parent: str | None = None, **more: Any) -> bytes:
    said = {"type": "message_start", "message": {"id": key, "model": "m", **more}}
    return json.dumps({"type": "stream_event", "event": said, "parent_tool_use_id": parent}).encode()


def say(key: str, *blocks: dict[str, Any], parent: str | None = None) -> bytes:
    message = {"id": key, "content": blocks}
    return json.dumps({"type": "assistant", "message": message, "parent_tool_use_id": parent}).encode()


CUT = json.dumps(
    {"type": "stream_event", "event": {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}}
).encode()
LARGE = "x" * 1_000_000
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "calls that say a lot of themselves": lambda: (begin(str(n), junk=LARGE) for n in range(40)),
    "usage with many names": lambda: (begin(str(n), usage={LARGE: n}) for n in range(40)),
    "long ids": lambda: (begin(f"{n}{LARGE}", f"{n}{LARGE}") for n in range(40)),
    "long ids of tools": lambda: (
        say(f"{n}{LARGE}", {"type": "tool_use", "id": f"{n}{LARGE}", "name": LARGE}) for n in range(40)
    ),
    "an answer that is cut for ever": lambda: (
        line
        for n in range(40)
        for line in (begin(str(n)), say(str(n), {"type": "text", "text": LARGE}), CUT)
    ),
    "many texts in one step": lambda: iter(
        [say("a", *[{"type": "text", "text": LARGE}] * 10, *[{"type": "text", "text": "y" * 200}] * 20_000)]
    ),
    "many models and denials": lambda: iter(
        [json.dumps({"type": "result", "modelUsage": {str(n): {"inputTokens": 1} for n in range(5_000)},
          "permission_denials": [{"tool_name": f"{n}{LARGE[:500]}"} for n in range(2_000)]}).encode()]
    ),
    "many results of nothing": lambda: (
        json.dumps({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "?"}] * 20_000}})
        .encode() for _ in range(2)
    ),
    "many messages": lambda: (say(str(n)) for n in range(10_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_takes_little_of_a_workers_memory_and_time(name: str) -> None:
    """A worker reads all its agents' streams in one thread: while it is at one, the others wait."""
    stream = Stream(trace := Trace())
    for number in range(200):
        stream.read(say(f"s{number}", *[{"type": "tool_use", "id": f"c{number}", "name": "Bash"}] * 25))
    stream.read(begin("first"))
    stream.completion(ModelSettings())  # imports the prices
    flood = list(FLOODS[name]())
    tracemalloc.start()
    begun = time.thread_time()
    for line in flood:
        stream.read(line)
    completion, trajectory = stream.completion(ModelSettings()), trace.trajectory()
    seconds = time.thread_time() - begun
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Of the result, the line itself is kept.
    assert kept < 35_000_000 + (len(flood[0]) if "modelUsage" in str(flood[0][:40]) else 0)
    assert seconds < 15  # with memory traced; each took minutes, or some hundred MB
    assert trajectory is not None
    assert len(trajectory.steps) <= MOST_STEPS + 60
    assert len(completion.model_dump_json()) < 10_000_000


def test_sub_agents_of_sub_agents_have_an_end() -> None:
    chain = [
        say(f"s{n}", {"type": "tool_use", "id": f"c{n}", "name": "Task"}, parent=f"c{n - 1}" if n else None)
        for n in range(2000)
    ]
    trajectory, _ = claude(chain)
    assert len(trajectory.steps) == 2001
    text = json.dumps(atif.document(trajectory))
    assert 15 < text.count('"subagent_trajectories"') <= 20
    assert all(f'"call-{number}"' in text for number in (1, 20, 1000, 2000))
    Atif.model_validate(json.loads(text))


@pytest.mark.parametrize("within", [[1, 1], [2, 1], [None, 1, 1], [7, 7]])
def test_forged_steps_that_go_in_a_circle_are_a_document(within: list[int | None]) -> None:
    calls = [[ToolCall(number=number, name="Task")] for number in (1, 2, 1)]
    steps = [
        Step(source="agent", calls=tuple(made), within=inside)
        for made, inside in zip(calls, within, strict=False)
    ]
    first = Step(source="user", text="?")
    json.dumps(atif.document(Trajectory(steps=(first, *steps))))


@pytest.mark.parametrize(
    "told",
    [None, [], {}, {"schema_version": "ATIF-v2.0"}, {"schema_version": "ATIF-v1.8", "steps": 3},
     {"schema_version": "ATIF-v1.8", "steps": [3, {"source": "agent", "message": {"a": []}, "tool_calls": [{}, 7],
      "metrics": {"prompt_tokens": -1, "cost_usd": "much"}, "observation": {"results": [{"source_call_id": []}]}}]},
     {"schema_version": "ATIF-v1.8", "subagent_trajectories": [{"trajectory_id": []}], "steps": [{"source": "agent",
      "observation": {"results": [{"subagent_trajectory_ref": [{"trajectory_id": {}}]}]}}]}],
)  # fmt: skip
def test_a_file_that_makes_no_sense_breaks_nothing(told: Any) -> None:
    trace = Trace()
    try:
        atif.note(told, trace)
    except ValueError:
        assert trace.trajectory() is None


def a_run(folder: Path) -> tuple[Places, list[AttemptRecord]]:
    """A run at home with the steps of every stream, and of an attempt that has none."""
    places, records = Places(folder / "state"), []
    places.run("r").mkdir(parents=True)
    with zipfile.ZipFile(places.steps("r"), "w") as archive:
        for number, name in enumerate(ALL, start=1):
            trajectory, _ = (codex if name in CODEX else claude)(ALL[name])
            digest, data = pack_steps(trajectory)
            if f"{digest}.gz" not in archive.namelist():
                archive.writestr(f"{digest}.gz", data)
            records.append(a_record("t", attempt=number, trajectory=digest, run_id="r"))
    records.append(a_record("t/../odd", attempt=len(ALL) + 1))
    collect.write_records(places.records("r"), iter(records))
    return places, records


@pytest.mark.parametrize("width", [80, 120])
def test_steps_are_a_list_that_fits_the_terminal(tmp_path: Path, width: int) -> None:
    places, records = a_run(tmp_path)
    text = attempts.step_texts(records, places, "r", width)
    assert max(map(len, text.splitlines())) <= width
    assert '→ Bash {"command": "echo hi; ls"}' in text
    assert "✗ " in text
    assert "it was stopped here" in text
    assert "no steps: none are kept of it" in text


def test_a_hostile_attempt_moves_no_cursor(tmp_path: Path) -> None:
    places, _ = a_run(tmp_path)
    nasty = [claude(hostile(number))[0] for number in range(10)]
    with zipfile.ZipFile(places.steps("r"), "w") as archive:
        for one in nasty:
            archive.writestr(f"{pack_steps(one)[0]}.gz", pack_steps(one)[1])
    shown = [a_record("t", trajectory=pack_steps(one)[0]) for one in nasty]
    text = attempts.step_texts(shown, places, "r", 80)
    assert not {"\x1b", "\x07", "\u202e", "\r", "\x00"} & set(text)
    assert len(text) < 1_000_000


def test_every_exported_file_is_accepted(tmp_path: Path) -> None:
    places, records = a_run(tmp_path)
    assert attempts.export(records, places, "r", tmp_path / "out") == len(ALL)
    files = list((tmp_path / "out").iterdir())
    assert len(files) == len(ALL)
    for file in files:
        assert Atif.model_validate_json(file.read_text()).schema_version == "ATIF-v1.8"


def test_a_damaged_archive_has_no_steps_and_breaks_nothing(tmp_path: Path) -> None:
    places, records = a_run(tmp_path)
    for damage in (b"", b"no zip", places.steps("r").read_bytes()[:-100]):
        places.steps("r").write_bytes(damage)
        assert "they are not in this state root" in attempts.step_texts(records[:1], places, "r", 80)
    with zipfile.ZipFile(places.steps("r"), "w") as archive:
        for data in (b"no gzip", gzip.compress(b"[]"), gzip.compress(b"0" * 80_000_000)):
            archive.writestr(f"{hashlib.sha256(data).hexdigest()}.gz", data)
            record = a_record("t", trajectory=hashlib.sha256(data).hexdigest())
            assert KeptSteps(places.steps("r")).of(record) is None
