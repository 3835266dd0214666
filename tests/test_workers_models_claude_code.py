"""The real Claude Code CLI against the stand-in, and its stream of events read by itself."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from standing_in import Asked, Reply, StandIn, standing_in

from judges.judgment import Completion
from workers.models.choose import model_for
from workers.models.claude_code import ClaudeCode, Stream
from workers.models.model import ModelFailed, ModelTimedOut, Request
from workers.models.program import EndedProgram
from workers.models.steps import Marks, Trace
from workers.store.messages import ModelSettings, Price

CLAUDE = shutil.which(os.environ.get("UPLIFT_CLAUDE") or "claude")
real_cli = pytest.mark.skipif(
    CLAUDE is None, reason="no claude on PATH and no UPLIFT_CLAUDE; npm install @anthropic-ai/claude-code"
)
NAME = "claude-sonnet-4-5"
CANARY = "canary-of-the-users-home"
SKILL_WORDS = "always-mention-the-zebra"


@pytest.fixture(autouse=True)
def a_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home full of things that must not reach a request."""
    home = tmp_path / "users-home"
    (home / ".claude/skills/own").mkdir(parents=True)
    (home / ".claude/skills/own/SKILL.md").write_text(
        f"---\nname: own\ndescription: {CANARY}\n---\n{CANARY}\n"
    )
    (home / ".claude/CLAUDE.md").write_text(CANARY)
    (home / ".claude/settings.json").write_text(json.dumps({"env": {"CANARY": CANARY}, "model": CANARY}))
    (tmp_path / "CLAUDE.md").write_text(CANARY)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/CLAUDE.md").write_text(CANARY)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-0123456789")


def a_skill(folder: Path) -> Path:
    skill = folder / "zebra-skill"
    skill.mkdir(exist_ok=True)
    text = "---\nname: zebra-skill\ndescription: Use it for zebras.\n---\n" + SKILL_WORDS
    (skill / "SKILL.md").write_text(text)
    return skill


def a_request(folder: Path, skill: Path | None = None, **rest: Any) -> Request:
    return Request("which platforms?", workspace=folder / "workspace", skill=skill, **rest)


def claude(stand_in: StandIn, name: str = NAME, **settings: Any) -> ClaudeCode:
    model = model_for(f"claude-code:{name}", ModelSettings(params={"base_url": stand_in.url}, **settings))
    assert isinstance(model, ClaudeCode)
    return model


def asked_of(stand_in: StandIn) -> list[dict[str, Any]]:
    return [asked.body for asked in stand_in.asked if asked.path.endswith("/messages")]


def without_identity(body: dict[str, Any]) -> dict[str, Any]:
    """A request without what differs between any two runs of the CLI: who asks, and where it runs."""
    return {name: value for name, value in body.items() if name != "metadata"}


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Every piece of text in a request's messages, wherever the CLI put it."""
    contents = [message["content"] for message in messages]
    blocks = [content if isinstance(content, list) else [{"text": content}] for content in contents]
    return [block["text"] for content in blocks for block in content]


@real_cli
@pytest.mark.parametrize("sandbox", ["off", "auto"])
async def test_a_run_records_text_tokens_cost_turns_and_version(tmp_path: Path, sandbox: Any) -> None:
    reply = Reply(
        text="iOS", input_tokens=1000, output_tokens=100, cache_read_tokens=300, cache_write_tokens=200
    )
    async with standing_in(reply) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path, sandbox=sandbox))
    assert (said.text, said.turns, said.skill_loaded) == ("iOS", 1, None)
    assert (said.input_tokens, said.output_tokens) == (1500, 100)
    assert (said.cache_read_tokens, said.cache_write_tokens) == (300, 200)
    # Published per million tokens: input 3, cache read 0.30, cache write 3.75, output 15.
    assert said.cost_usd == pytest.approx((1000 * 3 + 300 * 0.3 + 200 * 3.75 + 100 * 15) / 1e6)
    assert said.cost_source is not None
    assert said.agent_version is not None
    assert not said.truncated
    assert said.warnings == ()


@real_cli
async def test_the_baseline_sees_no_skill_the_candidate_does_and_nothing_else_differs(tmp_path: Path) -> None:
    skill = a_skill(tmp_path)
    async with standing_in() as stand_in:
        await claude(stand_in).complete(a_request(tmp_path))
        await claude(stand_in).complete(a_request(tmp_path, skill))
    baseline, candidate = map(without_identity, asked_of(stand_in))
    assert "zebra" not in json.dumps(baseline)
    assert "Use it for zebras." in json.dumps(candidate)
    assert [tool["name"] for tool in baseline["tools"]] == [tool["name"] for tool in candidate["tools"]]
    before, after = texts(baseline["messages"]), texts(candidate["messages"])
    assert [text for text in before if text not in after] == []
    assert all("zebra-skill" in text for text in after if text not in before)
    # With any skill at hand the CLI adds a section on how to call skills; otherwise the system prompts agree.
    before, after = (body["system"][-1]["text"].splitlines() for body in (baseline, candidate))
    assert [line for line in before if line not in after] == []
    assert all("kill" in line or "Session-specific" in line for line in after if line and line not in before)
    for name in baseline.keys() - {"messages", "system"}:
        assert baseline[name] == candidate[name], name


@real_cli
async def test_two_runs_of_the_same_arm_ask_the_same(tmp_path: Path) -> None:
    async with standing_in() as stand_in:
        for _ in range(2):
            await claude(stand_in).complete(a_request(tmp_path))
    first, second = map(without_identity, asked_of(stand_in))
    assert first == second


@real_cli
@pytest.mark.parametrize("sandbox", ["off", "auto"])
async def test_nothing_of_the_users_home_or_of_parent_folders_reaches_a_request(
    tmp_path: Path, sandbox: Any
) -> None:
    async with standing_in() as stand_in:
        await claude(stand_in).complete(a_request(tmp_path, sandbox=sandbox))
    assert CANARY not in json.dumps(asked_of(stand_in))
    home = tmp_path / "users-home"
    assert sorted(path.name for path in home.iterdir()) == [".claude"]
    assert sorted(path.name for path in (home / ".claude").iterdir()) == [
        "CLAUDE.md",
        "settings.json",
        "skills",
    ]


@real_cli
async def test_no_bundled_skill_is_offered_to_the_baseline(tmp_path: Path) -> None:
    async with standing_in() as stand_in:
        await claude(stand_in).complete(a_request(tmp_path))
    assert "skills are available" not in json.dumps(asked_of(stand_in)[0]["messages"])


@real_cli
async def test_a_skill_that_the_agent_calls_is_noted_and_its_text_is_then_sent(tmp_path: Path) -> None:
    call = {"name": "Skill", "input": {"skill": "zebra-skill:zebra-skill"}}
    async with standing_in(Reply(tool=call), Reply(text="done")) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path, a_skill(tmp_path)))
    assert said.skill_loaded
    assert said.turns == 2
    assert SKILL_WORDS in json.dumps(asked_of(stand_in)[-1])


@real_cli
@pytest.mark.parametrize(
    ("asked", "loaded"),
    [("zebra-skill", True), ("/zebra-skill", True), ("no-such-skill", False), ("review", False)],
)
async def test_only_a_load_of_this_skill_that_succeeded_counts(
    tmp_path: Path, asked: str, loaded: bool
) -> None:
    call = {"name": "Skill", "input": {"skill": asked}}
    async with standing_in(Reply(tool=call), Reply(text="done")) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path, a_skill(tmp_path)))
    assert said.skill_loaded is loaded


@real_cli
async def test_a_skill_is_known_by_the_name_in_its_front_matter_in_any_script(tmp_path: Path) -> None:
    skill = a_skill(tmp_path)
    (skill / "SKILL.md").write_text(f"---\nname: 'Große 技能'\ndescription: zebras\n---\n{SKILL_WORDS}")
    call = {"name": "Skill", "input": {"skill": "Große 技能"}}
    async with standing_in(Reply(tool=call), Reply(text="done")) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path, skill))
    assert said.skill_loaded
    assert SKILL_WORDS in json.dumps(asked_of(stand_in)[-1])


@real_cli
async def test_files_that_the_agent_writes_stay_in_the_workspace(tmp_path: Path) -> None:
    call = {"name": "Bash", "input": {"command": "echo made > made.txt", "description": "make a file"}}
    async with standing_in(Reply(tool=call), Reply(text="done")) as stand_in:
        await claude(stand_in).complete(a_request(tmp_path))
    assert (tmp_path / "workspace/made.txt").read_text() == "made\n"


@real_cli
async def test_a_denied_tool_is_told(tmp_path: Path) -> None:
    call = {"name": "Write", "input": {"file_path": str(tmp_path / "outside.txt"), "content": "x"}}
    async with standing_in(Reply(tool=call), Reply(text="done")) as stand_in:
        said = await claude(stand_in, tools=("Read", "Write(/nowhere/*)")).complete(a_request(tmp_path))
    assert said.text == "done"
    assert said.warnings == ("tool Write was denied 1 times",)


@real_cli
@pytest.mark.parametrize(("status", "words"), [(401, "authenticate"), (404, "model")])
async def test_a_wrong_key_or_model_is_hopeless(tmp_path: Path, status: int, words: str) -> None:
    async with standing_in(Reply(status=status, message="no")) as stand_in:
        with pytest.raises(ModelFailed, match=words) as caught:
            await claude(stand_in, retry=False).complete(a_request(tmp_path))
    assert caught.value.hopeless
    assert f"HTTP {status}" in str(caught.value)


@real_cli
async def test_a_wrong_key_is_not_tried_for_a_minute(tmp_path: Path) -> None:
    async with standing_in(Reply(status=401, message="no")) as stand_in:
        with pytest.raises(ModelFailed, match="HTTP 401") as caught:
            await claude(stand_in).complete(a_request(tmp_path))
        assert len(asked_of(stand_in)) == 1
    assert caught.value.hopeless


@real_cli
async def test_an_overloaded_api_is_asked_again_within_the_run(tmp_path: Path) -> None:
    replies = (
        Reply(status=529, message="over"),
        Reply(status=429, message="slow", retry_after="0"),
        Reply(text="iOS"),
    )
    async with standing_in(*replies) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path))
    assert said.text == "iOS"


@real_cli
async def test_an_api_that_stays_overloaded_is_an_error_and_not_hopeless(tmp_path: Path) -> None:
    async with standing_in(Reply(status=529, message="over")) as stand_in:
        with pytest.raises(ModelFailed, match="HTTP 529") as caught:
            await claude(stand_in, retry=False).complete(a_request(tmp_path))
    assert not caught.value.hopeless


CALL = {"name": "Bash", "input": {"command": "true", "description": "nothing"}}
PAID = {"input_tokens": 1000, "output_tokens": 100}


CUT_OFF = {"stop": "max_tokens", **PAID}


@real_cli
@pytest.mark.parametrize(
    ("replies", "text", "truncated"),
    [
        ([Reply(stop="refusal", text="", **PAID)], "", False),
        ([Reply(stop="refusal", text="I will not.", **PAID)], "I will not.", False),
        ([Reply(tool=CALL, **PAID), Reply(stop="refusal", text="", **PAID)], "", False),
        # The CLI has a cut answer continued three times by itself.
        ([Reply(text=word, **CUT_OFF) for word in ("i", "O", "S, ", "And")], "iOS, And", True),
        ([Reply(text="iOS, ", **CUT_OFF), Reply(text="Android", **PAID)], "iOS, Android", False),
        ([Reply(text="", stop="model_context_window_exceeded", **PAID)] * 4, "", True),
    ],
    ids=["refusal", "refusal-in-words", "refusal-later", "cut", "continued", "no-room"],
)
async def test_a_refusal_and_a_cut_answer_are_answers_in_the_models_own_words(
    tmp_path: Path, replies: list[Reply], text: str, truncated: bool
) -> None:
    async with standing_in(*replies) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path))
    calls = len(replies)
    assert len(asked_of(stand_in)) == calls
    assert (said.text, said.truncated, said.turns) == (text, truncated, calls)
    assert (said.input_tokens, said.output_tokens) == (calls * 1000, calls * 100)
    # Published per million tokens: 3 for input and 15 for output.
    assert said.cost_usd == pytest.approx(calls * (1000 * 3 + 100 * 15) / 1e6)


@real_cli
@pytest.mark.parametrize(
    ("replies", "billed"),
    [
        ([Reply(tool=CALL, **PAID), Reply(status=400, message="bad")], 1),
        ([Reply(**CUT_OFF), Reply(status=400, message="bad")], 1),
        ([Reply(**CUT_OFF), Reply(drop=True)], 1),
        ([Reply(status=400, message="bad")], 0),
    ],
    ids=["http-later", "http-after-a-cut", "dropped-after-a-cut", "http"],
)
async def test_a_run_that_failed_tells_what_it_cost(
    tmp_path: Path, replies: list[Reply], billed: int
) -> None:
    async with standing_in(*replies) as stand_in:
        with pytest.raises(ModelFailed) as caught:
            await claude(stand_in, retry=False).complete(a_request(tmp_path))
    paid = caught.value.completion
    assert paid is not None
    assert (paid.input_tokens, paid.output_tokens) == (billed * 1000, billed * 100)
    assert paid.cost_usd == pytest.approx(billed * (1000 * 3 + 100 * 15) / 1e6)


@real_cli
async def test_each_call_is_priced_by_its_own_length(tmp_path: Path) -> None:
    """Published for prompts over 200,000 tokens: 6 for input and 22.50 for output, else 3 and 15."""
    short, long = (
        {"input_tokens": 150_000, "output_tokens": 200},
        {"input_tokens": 250_000, "output_tokens": 10},
    )
    async with standing_in(Reply(tool=CALL, **short), Reply(text="iOS", **short)) as stand_in:
        two_short = await claude(stand_in).complete(a_request(tmp_path))
    async with standing_in(Reply(tool=CALL, **short), Reply(text="iOS", **long)) as stand_in:
        mixed = await claude(stand_in).complete(a_request(tmp_path))
    one_short = (150_000 * 3 + 200 * 15) / 1e6
    assert two_short.cost_usd == pytest.approx(2 * one_short)
    assert mixed.cost_usd == pytest.approx(one_short + (250_000 * 6 + 10 * 22.5) / 1e6)


@real_cli
async def test_the_replies_tell_which_model_answered(tmp_path: Path) -> None:
    replies = Reply(tool=CALL, model="claude-b", **PAID), Reply(model="claude-a", **PAID)
    async with standing_in(*replies) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path))
    assert said.served_model == "claude-a, claude-b"
    # The price is that of the model that was asked.
    assert said.cost_usd == pytest.approx(2 * (1000 * 3 + 100 * 15) / 1e6)


@real_cli
async def test_max_tokens_bounds_what_a_call_may_say(tmp_path: Path) -> None:
    async with standing_in() as stand_in:
        await claude(stand_in).complete(a_request(tmp_path, params={"max_tokens": 77}))
    assert [body["max_tokens"] for body in asked_of(stand_in)] == [77]


@real_cli
async def test_an_unknown_models_cost_is_unknown_unless_the_config_tells(tmp_path: Path) -> None:
    reply = Reply(input_tokens=1000, output_tokens=100)
    async with standing_in(reply) as stand_in:
        unknown = await claude(stand_in, "my-own-model").complete(a_request(tmp_path))
        prices = {"my-own-model": Price(input=1, output=10)}
        told = await claude(stand_in, "my-own-model", prices=prices).complete(a_request(tmp_path))
    assert (unknown.cost_usd, unknown.cost_source) == (None, None)
    assert (told.cost_usd, told.cost_source) == (pytest.approx(0.002), "config")


@real_cli
async def test_an_agent_out_of_turns_is_judged_by_what_it_said(tmp_path: Path) -> None:
    call = {"name": "Bash", "input": {"command": "true", "description": "nothing"}}
    async with standing_in(Reply(tool=call)) as stand_in:
        said = await claude(stand_in).complete(a_request(tmp_path, params={"max_turns": 2}))
    assert said.truncated
    assert (said.turns, said.input_tokens) == (2, 20)


@real_cli
async def test_a_deadline_stops_a_hanging_agent_and_tells_what_it_had_spent(tmp_path: Path) -> None:
    call = {"name": "Bash", "input": {"command": "true", "description": "nothing"}}
    async with standing_in(Reply(tool=call, input_tokens=50), Reply(hang=True)) as stand_in:
        with pytest.raises(ModelTimedOut) as caught:
            await claude(stand_in).complete(a_request(tmp_path, timeout_seconds=15))
        await stand_in.all_gone()
    assert caught.value.completion.input_tokens == 50
    assert (caught.value.completion.output_tokens, caught.value.completion.cost_usd) == (None, None)


@real_cli
async def test_a_plain_question_without_a_workspace_gets_no_tools() -> None:
    def answer(asked: Asked) -> Reply:
        return Reply(text='{"score": 1}')

    async with standing_in() as stand_in:
        stand_in.answer = answer
        said = await claude(stand_in).complete(Request("grade this", system="be a judge"))
    assert said.text == '{"score": 1}'
    assert not asked_of(stand_in)[0].get("tools")
    assert "be a judge" in json.dumps(asked_of(stand_in)[0]["system"])


async def test_a_missing_cli_is_hopeless_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPLIFT_CLAUDE", "claude-that-is-not-there")
    with pytest.raises(ModelFailed, match=r"not found; install it .* or use --mock") as caught:
        await model_for("claude-code", ModelSettings()).complete(a_request(tmp_path))
    assert caught.value.hopeless


async def test_a_missing_key_is_hopeless_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPLIFT_CLAUDE", "true")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelFailed, match="set ANTHROPIC_API_KEY"):
        await model_for("claude-code", ModelSettings()).complete(a_request(tmp_path))


async def test_a_cli_that_says_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPLIFT_CLAUDE", "false")
    with pytest.raises(ModelFailed, match=r"ended without a result \(exit code 1\)"):
        await model_for("claude-code", ModelSettings()).complete(a_request(tmp_path, sandbox="off"))


def test_both_arms_get_identical_flags_but_for_the_skill(tmp_path: Path) -> None:
    model = ClaudeCode("opus", ModelSettings(tools=("Read",)))
    skill = a_skill(tmp_path)
    baseline, candidate = model.arguments(a_request(tmp_path)), model.arguments(a_request(tmp_path, skill))
    assert candidate == [*baseline, "--plugin-dir", str(skill)]
    assert "--bare" not in baseline


def read(*events: Any) -> Stream:
    stream = Stream()
    for event in events:
        stream.read(event if isinstance(event, bytes) else json.dumps(event).encode())
    return stream


ENDED = EndedProgram(exit_code=1, output=b"", cut=False, errors="Killed")


def test_an_api_error_is_an_error_though_its_subtype_says_success() -> None:
    stream = read({"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 500"})
    assert "API Error: 500" in str(stream.error(ENDED))


def test_an_answer_stands_whatever_the_exit_code() -> None:
    stream = read({"type": "result", "subtype": "success", "is_error": False, "result": "iOS"})
    assert stream.error(ENDED) is None
    assert stream.text == "iOS"


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"not json", b"[]", b"{}", b"\xff", b'{"type": "assistant", "message": 3}', b"[" * 99999),
        b'{"type": "assistant", "message": {"id": "m"}, "parent_tool_use_id": []}',
        b'{"type": "stream_event", "event": {"type": "message_start", "message": []}}',
        b'{"type": "stream_event", "event": {"type": "message_delta", "usage": 3, "delta": 3}}',
        b'{"type": "system", "subtype": "api_retry", "error_status": []}',
        b'{"type": "user", "message": {"content": [3, {"type": "tool_result", "tool_use_id": []}]}}',
    ],
)
def test_a_line_that_is_no_event_is_skipped(line: bytes) -> None:
    stream = read(line, {"type": "result", "is_error": False, "result": "iOS"}, line)
    assert stream.text == "iOS"


@pytest.mark.parametrize(
    ("asked", "error", "loaded"),
    [
        ("plugin:mine", False, True),
        ("mine", True, False),
        ("theirs", False, False),
        ("mine:theirs", False, False),
        (["mine"], False, False),
    ],
)
def test_a_skill_counts_as_loaded_once_the_tool_says_so(asked: Any, error: bool, loaded: bool) -> None:
    use = {"type": "tool_use", "id": "t", "name": "Skill", "input": {"skill": asked}}
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": error}
    stream = Stream(trace := Trace())
    trace.watch([Marks(frozenset({"mine"}), frozenset())])
    for kind, block in (("assistant", use), ("user", result)):
        assert not stream.trace.loaded
        stream.read(json.dumps({"type": kind, "message": {"id": "m", "content": [block]}}).encode())
    assert stream.trace.loaded is loaded


def started(name: str, model: str, tokens: int, parent: str | None = None) -> dict[str, Any]:
    message = {"id": name, "model": model, "usage": {"input_tokens": tokens, "output_tokens": 1}}
    event = {"type": "message_start", "message": message}
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}


def ended(tokens: int, parent: str | None = None) -> dict[str, Any]:
    event = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": tokens},
    }
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}


def answered(usage: dict[str, Any]) -> dict[str, Any]:
    return {"type": "result", "is_error": False, "result": "", "modelUsage": usage}


def test_tokens_of_several_models_are_kept_apart_for_their_prices() -> None:
    usage = {"a": {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3}, "b": {"inputTokens": 5}}
    stream = read(answered(usage))
    first = ["a", Completion(input_tokens=4, output_tokens=2, cache_read_tokens=3)]
    assert [part for _, *part in stream.used or []] == [first, ["b", Completion(input_tokens=5)]]


def test_what_the_result_counts_beside_the_calls_that_were_seen_is_one_more() -> None:
    usage = {"a": {"inputTokens": 35, "outputTokens": 13}, "b": {"inputTokens": 7, "outputTokens": 2}}
    init = {"type": "system", "subtype": "init", "model": "a"}
    calls = [started("m1", "a-2025", 10), started("m2", "b", 7, "tool"), ended(2, "tool"), ended(3)]
    stream = read(init, *calls, started("m3", "a-2025", 20), ended(4), answered(usage))
    assert stream.used is not None
    counted = [(key, model, one.input_tokens, one.output_tokens) for key, model, one in stream.used]
    assert counted == [("m1", "a", 10, 3), ("m3", "a", 20, 4), (None, "a", 5, 6), ("m2", "b", 7, 2)]
    assert stream.turns == 3


def test_calls_that_the_result_does_not_count_are_no_parts_of_it() -> None:
    stream = read(started("m1", "a", 10), ended(3), answered({"a": {"inputTokens": 9, "outputTokens": 9}}))
    assert stream.used == [(None, "a", Completion(input_tokens=9, output_tokens=9))]


def test_an_error_without_usage_is_known_to_have_used_nothing_and_an_answer_is_not() -> None:
    failed = read({"type": "result", "is_error": True, "result": "API Error", "modelUsage": {}})
    assert failed.used == []
    odd = read({"type": "result", "is_error": False, "result": "iOS", "modelUsage": {}})
    assert odd.used is None


async def test_a_run_that_crashes_tells_the_tokens_it_had_used_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = {"input_tokens": 50, "output_tokens": 1}
    said = {"type": "assistant", "message": {"id": "m", "model": NAME, "usage": usage, "content": []}}
    program = tmp_path / "claude"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("UPLIFT_CLAUDE", str(program))
    with pytest.raises(ModelFailed, match="exit code 9") as caught:
        await model_for(f"claude-code:{NAME}", ModelSettings()).complete(a_request(tmp_path, sandbox="off"))
    paid = caught.value.completion
    assert paid is not None
    # How many tokens it said is not known, so neither is its cost.
    assert (paid.input_tokens, paid.output_tokens, paid.cost_usd) == (50, None, None)
