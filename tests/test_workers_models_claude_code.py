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
from workers.messages import ModelSettings, Price
from workers.models import ModelFailed, ModelTimedOut, Request
from workers.models.choose import model_for
from workers.models.claude_code import ClaudeCode
from workers.models.claude_stream import Stream
from workers.models.process import Finished

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
    assert (said.text, said.turns, said.skill_invoked) == ("iOS", 1, False)
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
    assert said.skill_invoked
    assert said.turns is not None
    assert said.turns > 1
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
    assert said.input_tokens == 20


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


ENDED = Finished(exit_code=1, output=b"", cut=False, errors="Killed")


def test_an_api_error_is_an_error_though_its_subtype_says_success() -> None:
    stream = read({"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 500"})
    assert "API Error: 500" in str(stream.error(ENDED))


def test_an_answer_stands_whatever_the_exit_code() -> None:
    stream = read({"type": "result", "subtype": "success", "is_error": False, "result": "iOS"})
    assert stream.error(ENDED) is None
    assert stream.text == "iOS"


@pytest.mark.parametrize(
    "line", [b"", b"not json", b"[]", b"{}", b"\xff", b'{"type": "assistant", "message": 3}', b"[" * 99999]
)
def test_a_line_that_is_no_event_is_skipped(line: bytes) -> None:
    stream = read(line, {"type": "result", "is_error": False, "result": "iOS"}, line)
    assert stream.text == "iOS"


def test_tokens_of_several_models_are_kept_apart_for_their_prices() -> None:
    usage = {"a": {"inputTokens": 1, "outputTokens": 2, "cacheReadInputTokens": 3}, "b": {"inputTokens": 5}}
    stream = read({"type": "result", "is_error": False, "result": "", "modelUsage": usage})
    assert stream.used["a"] == Completion(input_tokens=4, output_tokens=2, cache_read_tokens=3)
    assert stream.used["b"].input_tokens == 5
