"""Programs as models: what they are given, how they are read, and that none outlives its attempt."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from standing_in import Reply, standing_in

from judges.judgment import Completion, Judgment, Sandbox
from judges.spec import Rubric
from workers.attempts.attempt import Attempt
from workers.attempts.permits import Permit, Turn
from workers.attempts.run_context import Answer, Question, Run
from workers.models import agent_view
from workers.models.choose import model_for
from workers.models.command import PRESETS, BadPath, parse
from workers.models.model import (
    MAX_OUTPUT_BYTES,
    Model,
    ModelBusy,
    ModelError,
    ModelFailed,
    ModelTimedOut,
    Request,
    UnknownModel,
)
from workers.models.program import run
from workers.models.steps import Trace
from workers.store.messages import CommandSpec, Limits, ModelSettings, Price, Task

SANDBOXES = pytest.mark.parametrize(
    "sandbox",
    [
        "off",
        pytest.param(
            "required",
            marks=pytest.mark.skipif(not agent_view.is_confined("auto"), reason="bubblewrap does not work"),
        ),
    ],
)


def a_command(script: str, **rest: Any) -> Model:
    """A model that is a Python script."""
    spec = CommandSpec(argv=(sys.executable, "-c", script, *rest.pop("arguments", ())), **rest)
    readable = (*spec.readable, sys.prefix, sys.base_prefix)
    commands = {"it": spec.model_copy(update={"readable": readable})}
    return model_for("command:it", ModelSettings(commands=commands, prices={"it": Price(input=1, output=2)}))


async def said_by(script: str, request: Request | None = None, **rest: Any) -> Completion:
    return await a_command(script, **rest).complete(request or Request("which platforms?"))


ECHO = "import sys; sys.stdout.write(sys.stdin.read())"


@SANDBOXES
async def test_a_program_gets_the_prompt_on_stdin_and_its_output_is_the_text(sandbox: Any) -> None:
    prompt = "Grüße $HOME `ls` {workspace} \x00"
    assert (await said_by(ECHO, Request(prompt, sandbox=sandbox))).text == prompt


async def test_a_program_may_get_the_prompt_as_a_file() -> None:
    script = "import sys; print(sys.stdin.read() + open(sys.argv[1]).read(), end='')"
    said = await said_by(script, arguments=("{prompt_file}",), prompt="file")
    assert said.text == "which platforms?"


async def test_arguments_may_hold_braces_of_their_own() -> None:
    said = await said_by("import sys; print(sys.argv[1], end='')", arguments=('{"a": {}}',))
    assert said.text == '{"a": {}}'


@SANDBOXES
async def test_a_program_sees_a_new_home_and_only_the_environment_it_is_allowed(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOWED_TOKEN", "yes")
    monkeypatch.setenv("SOME_SECRET", "canary")
    script = "import os, json; print(json.dumps({**os.environ, 'files': os.listdir(os.environ['HOME'])}))"
    seen = json.loads(
        (await said_by(script, Request("", sandbox=sandbox), environment=("ALLOWED_TOKEN",))).text
    )
    assert seen["ALLOWED_TOKEN"] == "yes"
    assert "canary" not in seen.values()
    assert seen["HOME"] != os.environ.get("HOME")
    assert sorted(seen["files"]) == ["prompt.txt", "tmp"]
    assert not os.path.exists(seen["HOME"])  # noqa: ASYNC240, PTH110 # a test may block


@SANDBOXES
async def test_a_program_works_in_the_attempts_workspace_and_its_files_stay_there(
    sandbox: Any, tmp_path: Path
) -> None:
    (tmp_path / "input.csv").write_text("1,2")
    script = "open('output.txt', 'w').write(open('input.csv').read() + '!')"
    await said_by(script, Request("", workspace=tmp_path, sandbox=sandbox))
    assert (tmp_path / "output.txt").read_text() == "1,2!"


@pytest.mark.skipif(not agent_view.is_confined("auto"), reason="bubblewrap does not work here")
async def test_a_confined_program_sees_no_other_file_of_this_machine(tmp_path: Path) -> None:
    workspace, other = tmp_path / "workspace", tmp_path / "other.txt"
    workspace.mkdir()
    other.write_text("another attempt's")
    script = (
        "import os, sys; processes = [name for name in os.listdir('/proc') if name.isdigit()]; "
        "print([os.path.exists(path) for path in sys.argv[1:]], len(processes))"
    )
    arguments = (str(other), __file__, str(Path.home() / ".profile"), str(workspace))
    said = await said_by(script, Request("", workspace=workspace, sandbox="required"), arguments=arguments)
    # Two processes: the program and bubblewrap's own first one.
    assert said.text == "[False, False, False, True] 2\n"


@pytest.mark.skipif(not agent_view.is_confined("auto"), reason="bubblewrap does not work here")
@pytest.mark.skipif(not Path("/etc/shadow").exists(), reason="no /etc/shadow")
async def test_a_confined_program_reads_no_passwords_even_as_root() -> None:
    with pytest.raises(ModelFailed, match="PermissionError"):
        await said_by("print(open('/etc/shadow').read())", Request("", sandbox="required"))


@SANDBOXES
async def test_a_home_that_the_program_locked_is_deleted_all_the_same(
    sandbox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = "import os; os.makedirs(os.environ['HOME'] + '/a/b'); os.chmod(os.environ['HOME'] + '/a', 0)"
    await said_by(script, Request("", sandbox=sandbox))
    assert os.listdir(tmp_path) == []  # noqa: PTH208 # a test may block


async def test_a_program_that_judges_is_confined_as_the_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_view, "is_confined", lambda sandbox: False)
    mark = tmp_path / "judged"
    task = Task(id="t", prompt="p", judge=Rubric(type="llm-rubric", rubric="is it good"))
    answer = Answer(Request("p"), "", 0.0, completion=Completion(text="a poem"))

    async def judged(sandbox: Sandbox) -> Judgment:
        run = SimpleNamespace(
            manifest=SimpleNamespace(sandbox=sandbox, judge_model="command:judge"),
            settings=ModelSettings(retry=False),
            fixtures=None,
            model=lambda spec: a_command(f"open({str(mark)!r}, 'w')"),
        )
        host = cast(Any, SimpleNamespace(turns=SimpleNamespace(judging=_at_once)))
        question = Question(task, "candidate", "openai:m", 1)
        judgment, _ = await Attempt(host, cast(Run, run), question, 0, 1).judge(answer)
        return judgment

    assert "sandbox required" in ((await judged("required")).error or "")
    assert not mark.exists()
    await judged("off")
    assert mark.exists()


@asynccontextmanager
async def _at_once(run: Run, spec: str, prompt: str) -> AsyncIterator[Turn]:
    yield Turn(cast(Any, SimpleNamespace(limits=None)), run, Permit(spec, "", 0, Limits()))


async def test_a_required_sandbox_that_does_not_work_is_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_view, "is_confined", lambda sandbox: False)
    with pytest.raises(ModelFailed, match="bubblewrap does not work here") as caught:
        await said_by(ECHO, Request("", sandbox="required"))
    assert caught.value.hopeless


def a_skill(folder: Path) -> Path:
    skill = folder / "release-notes"
    skill.mkdir()
    (skill / "SKILL.md").write_text("be brief")
    return skill


@SANDBOXES
async def test_a_skill_is_mounted_at_its_place_only_where_there_is_one(sandbox: Any, tmp_path: Path) -> None:
    script = "import glob, os; print(glob.glob(os.environ['HOME'] + '/.agents/skills/*/SKILL.md'))"
    for skill, seen in [(None, False), (a_skill(tmp_path), True)]:
        request = Request("", skill=skill, sandbox=sandbox)
        said = await said_by(script, request, skill_folder="{home}/.agents/skills")
        assert ("release-notes/SKILL.md" in said.text) == seen


@SANDBOXES
async def test_a_program_that_is_asked_again_finds_its_skill_and_cannot_lead_the_copy_elsewhere(
    sandbox: Any, tmp_path: Path
) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    (outside := tmp_path / "outside").mkdir()
    request = Request("", skill=a_skill(tmp_path), sandbox=sandbox, workspace=workspace)
    there = "import os, sys; print(os.listdir('.agents/skills')); sys.exit(75)"
    for _ in range(2):
        with pytest.raises(ModelBusy):
            await said_by(there, request, skill_folder=".agents/skills", busy_exit_codes=(75,))
    swap = f"import shutil, os; shutil.rmtree('.agents'); os.symlink({str(outside)!r}, '.agents')"
    await said_by(swap, request, skill_folder=".agents/skills")
    with pytest.raises(ModelFailed, match=r"\.agents is a link"):
        await said_by(there, request, skill_folder=".agents/skills")
    assert list(outside.iterdir()) == []


@SANDBOXES
async def test_a_skill_may_be_given_by_extra_arguments(sandbox: Any, tmp_path: Path) -> None:
    script = (
        "import sys; print(open(sys.argv[2] + '/SKILL.md').read() if len(sys.argv) > 1 else 'none', end='')"
    )
    skill = a_skill(tmp_path)
    extra = ("--skill", "{skill}")
    assert (await said_by(script, Request("", sandbox=sandbox), skill_argv=extra)).text == "none"
    assert (
        await said_by(script, Request("", skill=skill, sandbox=sandbox), skill_argv=extra)
    ).text == "be brief"


async def test_a_skill_that_cannot_be_mounted_is_an_error_and_never_a_second_baseline(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="--skill-mode prepend"):
        await said_by(ECHO, Request("", skill=a_skill(tmp_path)))


ANSWER = {
    "reply": {"text": "hi"},
    "usage": [{"in": 3, "out": 2}, {"in": 4, "out": 5}],
    "usd": 0.5,
    "turns": 2,
}
PATHS = {
    "text_path": "reply.text",
    "input_tokens_path": "usage.*.in",
    "output_tokens_path": "usage.*.out",
    "turns_path": "turns",
    "error_path": "error.message",
}


async def test_json_is_read_by_paths_and_stars_are_added_up() -> None:
    said = await said_by(f"print({json.dumps(ANSWER)!r})", output="json", cost_path="usd", **PATHS)
    assert (said.text, said.input_tokens, said.output_tokens, said.turns) == ("hi", 7, 7, 2)
    assert (said.cost_usd, said.cost_source) == (0.5, "provider")


async def test_a_cost_that_the_program_does_not_tell_comes_from_the_configs_prices() -> None:
    said = await said_by(f"print({json.dumps(ANSWER)!r})", output="json", **PATHS)
    assert said.cost_usd == pytest.approx((7 * 1 + 7 * 2) / 1e6)


async def test_of_json_lines_the_last_that_has_a_value_counts_and_other_lines_are_skipped() -> None:
    lines = ['{"reply": {"text": "first"}}', "loading…", '{"turns": 3}', "[]", '{"reply": {"text": "last"}}']
    said = await said_by(f"print({chr(10).join(lines)!r}, end='')", output="jsonl", **PATHS)
    assert (said.text, said.turns) == ("last", 3)


async def test_an_error_in_the_output_is_an_error_whatever_the_exit_code() -> None:
    with pytest.raises(ModelFailed, match="it: no credit"):
        await said_by(
            """print('{"error": {"message": "no credit"}, "reply": {"text": "x"}}')""", output="json", **PATHS
        )


@pytest.mark.parametrize(
    ("script", "kind", "complaint"),
    [
        ("print('not json')", "json", "unreadable JSON: not json"),
        ("", "json", "no text at 'reply.text'"),
        ("print('[' * 100_000)", "json", "unreadable JSON"),
        ("""print('{"reply": {"text": 5}}')""", "json", "no text at 'reply.text'"),
        ("print('{}'); print('{}')", "jsonl", "no text at 'reply.text'"),
    ],
)
async def test_output_that_cannot_be_read_is_an_error_that_says_so(
    script: str, kind: str, complaint: str
) -> None:
    with pytest.raises(ModelFailed, match=complaint):
        await said_by(script, output=kind, **PATHS)


async def test_a_failed_program_is_quoted_with_its_exit_code_and_errors() -> None:
    with pytest.raises(ModelFailed, match="it ended with exit code 3: no such flag"):
        await said_by("import sys; sys.exit(sys.stderr.write('no such flag') and 3)")


async def test_some_exit_codes_mean_busy_and_some_mean_well_enough() -> None:
    script = "import sys; print('said'); sys.exit(75)"
    with pytest.raises(ModelBusy):
        await said_by(script, busy_exit_codes=(75,))
    assert (await said_by(script, ok_exit_codes=(0, 75))).text == "said\n"


USED = '{"reply": {"text": "x"}, "usage": {"in": 1000, "out": 200}}'
USAGE_PATHS = {"input_tokens_path": "usage.in", "output_tokens_path": "usage.out"}


@pytest.mark.parametrize("kind", ["json", "jsonl"])
@pytest.mark.parametrize("code", [3, 75])
async def test_a_program_that_fails_is_billed_for_what_it_says_it_has_used(kind: str, code: int) -> None:
    script = f"import sys; print('{USED}'); sys.exit({code})"
    with pytest.raises(ModelError) as caught:
        await said_by(script, output=kind, busy_exit_codes=(75,), text_path="reply.text", **USAGE_PATHS)
    paid = caught.value.completion
    assert paid is not None
    assert (paid.input_tokens, paid.output_tokens) == (1000, 200)
    assert paid.cost_usd == pytest.approx((1000 * 1 + 200 * 2) / 1e6)


async def test_what_a_program_costs_that_fails_without_a_word_is_unknown() -> None:
    with pytest.raises(ModelFailed) as caught:
        await said_by("import sys; sys.exit(3)", output="json", text_path="reply.text", **USAGE_PATHS)
    assert caught.value.completion is None


async def test_a_failed_programs_last_words_are_quoted_and_not_its_first_warnings() -> None:
    script = "import sys; sys.exit('warning: no colours\\n' * 99 + 'error: no such model')"
    with pytest.raises(ModelFailed, match=r"exit code 1: .*error: no such model$"):
        await said_by(script, Request("", sandbox="off"))


async def test_an_errors_text_does_not_tell_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-canary-0123456789")
    script = "import os, sys; sys.exit('bad key ' + os.environ['MY_API_KEY'])"
    with pytest.raises(ModelFailed, match=r"bad key \[redacted\]"):
        await said_by(script, environment=("MY_API_KEY",))


async def test_a_program_that_does_not_exist_is_hopeless() -> None:
    model = model_for(
        "command:it", ModelSettings(commands={"it": CommandSpec(argv=("no-such-program-here",))})
    )
    with pytest.raises(ModelFailed, match="no-such-program-here cannot be started") as caught:
        await model.complete(Request("", sandbox="off"))
    assert caught.value.hopeless


async def test_output_that_is_no_utf8_is_stored_safely() -> None:
    said = await said_by(r"import sys; sys.stdout.buffer.write(b'a\xff\x00\xed\xa0\x80\x1b[31m')")
    assert said.text.startswith("a\ufffd\x00")
    json.loads(said.model_dump_json())


@SANDBOXES
async def test_endless_output_is_cut_at_four_mebibytes_and_the_program_killed(sandbox: Any) -> None:
    said = await said_by("while True: print('y' * 1000)", Request("", sandbox=sandbox))
    assert said.truncated
    assert len(said.text.encode()) == MAX_OUTPUT_BYTES


async def test_an_endless_line_among_json_lines_is_dropped_and_the_others_read() -> None:
    script = 'print(\'x\' * 20_000_000); print(\'{"reply": {"text": "hi"}}\')'
    assert (await said_by(script, output="jsonl", **PATHS)).text == "hi"


async def test_a_program_that_ignores_its_stdin_is_no_problem() -> None:
    assert (await said_by("print('hi', end='')", Request("x" * 5_000_000))).text == "hi"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> bool:
    """Whether a process ends; killing is not instant."""
    for _ in range(3000):
        if not is_running(pid):
            return True
        await asyncio.sleep(0.01)
    return False


FAMILY = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(600)
open('pids', 'w').write(f'{os.getpid()} {child}')
"""


def written_pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


async def test_a_deadline_kills_a_program_and_its_children(tmp_path: Path) -> None:
    script = FAMILY + 'print(\'{"reply": {"text": "so far"}}\', flush=True); time.sleep(600)'
    request = Request("", workspace=tmp_path, timeout_seconds=4, sandbox="off")
    with pytest.raises(ModelTimedOut) as caught:
        await said_by(script, request, output="jsonl", **PATHS)
    assert caught.value.completion.text == "so far"
    for pid in written_pids(tmp_path):
        assert await gone(pid)


async def test_a_cancelled_attempt_kills_a_program_and_its_children(tmp_path: Path) -> None:
    call = asyncio.create_task(
        said_by(FAMILY + "time.sleep(600)", Request("", workspace=tmp_path, sandbox="off"))
    )
    while len(written_pids(tmp_path)) < 2:  # noqa: ASYNC110 # another process writes them
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for pid in written_pids(tmp_path):
        assert await gone(pid)


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_a_program_that_is_still_being_started_ends_with_its_children(how: str, tmp_path: Path) -> None:
    """asyncio would wait for the child, which waits for the end of an input that nobody closes any more."""
    marker = f"uplift-starting-canary-{os.getpid()}-{how.replace(' ', '-')}"
    argv = ["/bin/sh", "-c", "cat > /dev/null; true", marker]

    async def start(turns: int) -> None:
        call = asyncio.create_task(run(argv, stdin=b"", cwd=tmp_path, environment={}))
        async with asyncio.timeout(60) as deadline:
            for _ in range(turns):  # of the loop: somewhere among them the program's pipes are connected
                await asyncio.sleep(0)
            if how == "cancelled":
                call.cancel()
            else:
                deadline.reschedule(0)
            await call

    ends = [asyncio.create_task(start(turns)) for turns in range(12)]
    done, hanging = await asyncio.wait(ends, timeout=60)
    assert (len(done), len(hanging)) == (12, 0)
    assert all(one.cancelled() or isinstance(one.exception(), TimeoutError) for one in done)
    assert [pid for pid in processes_with(marker) if not await gone(pid)] == []


async def test_a_program_is_done_when_it_ends_though_its_child_holds_the_output(tmp_path: Path) -> None:
    request = Request("", workspace=tmp_path, timeout_seconds=60, sandbox="off")
    said = await said_by(FAMILY + "print('done')", request)
    assert said.text == "done\n"
    assert await gone(written_pids(tmp_path)[1])


WORKER = """
import asyncio, pathlib, sys
from workers.models.program import clean_environment, run
folder = pathlib.Path(sys.argv[1])
script = "import os, time; open('pids', 'w').write(f'{os.getpid()} 0'); time.sleep(600)"
argv = [sys.executable, "-c", script]
asyncio.run(run(argv, stdin=b"", cwd=folder, environment=clean_environment(folder)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
async def test_a_program_dies_with_its_worker(tmp_path: Path) -> None:
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, str(tmp_path))
    while len(written_pids(tmp_path)) < 2:  # noqa: ASYNC110 # another process writes them
        await asyncio.sleep(0.01)
    worker.kill()
    await worker.wait()
    assert await gone(written_pids(tmp_path)[0])


def test_a_program_can_be_run_from_a_loop_in_any_thread() -> None:
    with ThreadPoolExecutor() as threads:
        said = threads.submit(asyncio.run, said_by("print('hi')", Request("", sandbox="off"))).result()
    assert said.text == "hi\n"


@pytest.mark.skipif(not agent_view.is_confined("auto"), reason="bubblewrap does not work here")
async def test_a_confined_program_cannot_leave_a_daemon_behind(tmp_path: Path) -> None:
    script = FAMILY.replace("if child == 0:", "if child == 0:\n    os.setsid()\n    os.close(1); os.close(2)")
    marker = "uplift-daemon-canary"
    request = Request("", workspace=tmp_path, sandbox="required")
    assert (await said_by(script + "print('done')", request, arguments=(marker,))).text == "done\n"
    assert [pid for pid in processes_with(marker) if not await gone(pid)] == []


def processes_with(marker: str) -> list[int]:
    """Processes of this machine whose command line holds a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if marker in path.read_text():
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"prompt": "file"}, "argv has no {prompt_file}"),
        ({"output": "json"}, "text_path is needed"),
        ({"output": "json", "text_path": "a..b"}, "empty step"),
        ({"output": "json", "text_path": "a where b"}, "not KEY=VALUE"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_before_anything_runs(
    fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnknownModel, match=complaint):
        model_for("command:it", ModelSettings(commands={"it": CommandSpec(argv=("it",), **fields)}))


def test_paths_walk_names_indices_stars_and_conditions() -> None:
    value = {"type": "done", "ok": True, "items": [{"n": 1}, {"n": 2}], "none": None}
    assert parse("items.1.n").find(value) == 2
    assert parse("items.-1.n").find(value) == 2
    assert parse("items.*.n").find(value) == 3
    assert parse("items.5.n").find(value) is None
    assert parse("type.x").find(value) is None
    assert parse("none").find(value) is None
    assert parse("items.0.n where type=done and ok=true").find(value) == 1
    assert parse("items.0.n where type=failed").find(value) is None
    with pytest.raises(BadPath):
        parse("")


CODEX = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "0", "type": "reasoning", "text": "hmm"}},
    {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "iOS"}},
    {"type": "turn.completed", "usage": {"input_tokens": 90, "cached_input_tokens": 30, "output_tokens": 7}},
]  # as codex 0.169.0 writes it, without what is not read
GEMINI = {
    "response": "iOS",
    "stats": {
        "models": {
            "a": {
                "api": {"totalRequests": 2},
                "tokens": {
                    "prompt": 80,
                    "tool": 10,
                    "candidates": 3,
                    "thoughts": 4,
                    "cached": 30,
                    "total": 97,
                },
            }
        }
    },
}  # as gemini 0.61.0 writes it, without what is not read


@pytest.mark.parametrize(
    ("preset", "output"), [("codex", "\n".join(map(json.dumps, CODEX))), ("gemini", json.dumps(GEMINI))]
)
async def test_a_preset_reads_what_its_program_writes(preset: str, output: str) -> None:
    spec = PRESETS[preset].model_copy(update={"argv": (sys.executable, "-c", f"print({output!r})")})
    model = model_for(f"command:{preset}", ModelSettings(commands={preset: spec}))
    said = await model.complete(Request("", sandbox="off"))
    assert (said.text, said.input_tokens, said.output_tokens, said.cache_read_tokens) == ("iOS", 90, 7, 30)


CALLS = {
    "codex": {"name": "exec_command", "input": {"cmd": "echo made > made.txt"}},
    "gemini": {"name": "run_shell_command", "input": {"command": "echo made > made.txt", "description": "x"}},
}
NAMED = {"codex": "gpt-5", "gemini": "gemini-2.5-pro"}


@pytest.mark.parametrize("preset", sorted(NAMED))
@SANDBOXES
async def test_the_real_program_asks_the_named_model_uses_its_tools_and_sees_the_skill(
    preset: str, sandbox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(preset) is None:
        pytest.skip(f"no {preset} on PATH")
    (tmp_path / "zebra").mkdir()
    (tmp_path / "zebra/SKILL.md").write_text(
        "---\nname: zebra\ndescription: Use it for zebras.\n---\nzebra\n"
    )
    (tmp_path / "workspace").mkdir()
    paid = {"input_tokens": 150_000, "output_tokens": 100, "cache_read_tokens": 50_000}
    async with standing_in(Reply(tool=CALLS[preset], **paid), Reply(text="iOS", **paid)) as stand_in:
        monkeypatch.setenv("CODEX_API_KEY", "sk-canary-0123456789")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{stand_in.url}/v1")
        monkeypatch.setenv("GOOGLE_API_KEY", "sk-canary-0123456789")
        monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", stand_in.url)
        monkeypatch.delenv("GEMINI_API_KEY", raising=False)
        model = model_for(f"command:{preset}:{NAMED[preset]}", ModelSettings())
        asked = [Request("which platforms?", workspace=tmp_path / "workspace", sandbox=sandbox)]
        said = await model.complete(asked[0]._replace(skill=tmp_path / "zebra"))
        offered = len(stand_in.asked)
        await model.complete(asked[0])
    assert said.text == "iOS"
    assert (said.input_tokens, said.output_tokens, said.cache_read_tokens) == (300_000, 200, 100_000)
    # Published for both per million tokens: 1.25 for input, 0.125 for what was cached, 10 for output. The sum of the
    # calls is longer than a long prompt, no call is.
    assert said.cost_usd == pytest.approx((200_000 * 1.25 + 100_000 * 0.125 + 200 * 10) / 1e6)
    assert (tmp_path / "workspace/made.txt").read_text() == "made\n"
    assert all(NAMED[preset] in f"{one.path} {one.body.get('model')}" for one in stand_in.asked)
    assert ["Use it for zebras." in json.dumps(one.body) for one in stand_in.asked] == [
        number < offered for number in range(len(stand_in.asked))
    ]


@pytest.mark.parametrize("preset", sorted(NAMED))
async def test_the_real_programs_refusal_is_an_error_and_not_an_answer(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(preset) is None:
        pytest.skip(f"no {preset} on PATH")
    async with standing_in(Reply(status=400, message="no such thing")) as stand_in:
        monkeypatch.setenv("CODEX_API_KEY", "sk-canary-0123456789")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{stand_in.url}/v1")
        monkeypatch.setenv("GOOGLE_API_KEY", "sk-canary-0123456789")
        monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", stand_in.url)
        model = model_for(f"command:{preset}:{NAMED[preset]}", ModelSettings())
        with pytest.raises(ModelFailed, match="no such thing"):
            await model.complete(Request("which platforms?", workspace=tmp_path, sandbox="off"))


async def test_a_model_in_the_spec_becomes_arguments_and_its_price_is_the_models() -> None:
    script = "import json, sys; print(json.dumps({'text': ' '.join(sys.argv[1:]), 'in': 1000, 'out': 100}))"
    spec = CommandSpec(
        argv=(sys.executable, "-c", script, "{base_url}"),
        output="json",
        text_path="text",
        input_tokens_path="in",
        output_tokens_path="out",
        model_argv=("--model", "{model}"),
    )
    settings = ModelSettings(
        commands={"it": spec},
        params={"base_url": "http://here"},
        prices={"big:v2": Price(input=1, output=10)},
    )
    named = await model_for("command:it:big:v2", settings).complete(Request("", sandbox="off"))
    assert (named.text, named.cost_usd) == ("http://here --model big:v2", pytest.approx(0.002))
    bare = await model_for("command:it", settings).complete(Request("", sandbox="off"))
    assert (bare.text, bare.cost_usd) == ("http://here", None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("command:it:big", "takes no model such as 'big'"),
        ("command:codex:", "ends in a colon"),
        ("command:codxe:gpt-5", "did you mean codex?"),
    ],
)
def test_a_model_that_a_program_cannot_be_asked_for_is_refused(spec: str, words: str) -> None:
    with pytest.raises(UnknownModel, match=re.escape(words)):
        model_for(spec, ModelSettings(commands={"it": CommandSpec(argv=("it",))}))


def test_several_names_in_one_step_are_added_up() -> None:
    assert parse("*.a|b").find([{"a": 1, "b": 2, "c": 4}, {"b": 8}]) == 11
    assert parse("a|b").find({"b": "text"}) == "text"


STEPS = """
import json, os, pathlib, sys, time
found = sorted(str(one) for one in pathlib.Path(sys.argv[1]).rglob("SKILL.md"))
calls = [{"tool_call_id": "1", "function_name": "read", "arguments": {"path": one}} for one in found]
seen = [{"source_call_id": "1", "content": pathlib.Path(one).read_text()} for one in found]
step = {"step_id": 1, "source": "agent", "message": "hm", "tool_calls": calls, "observation": {"results": seen}}
step["metrics"] = {"prompt_tokens": 7, "completion_tokens": 3}
told = {"schema_version": "ATIF-v1.8", "agent": {"name": "it", "version": "1"}, "steps": [step]}
(pathlib.Path(os.environ["HOME"]) / "steps.json").write_text(json.dumps(told))
print("said", flush=True)
time.sleep(float(sys.argv[2]))
"""


async def stepping(request: Request, where: str = "{workspace}", seconds: str = "0") -> Trace:
    """The steps that a program leaves, which reads each skill that it finds."""
    command = CommandSpec(
        argv=(sys.executable, "-c", STEPS, where, seconds),
        trajectory="{home}/steps.json",
        skill_folder="{workspace}/skills",
    )
    model = model_for("command:it", ModelSettings(commands={"it": command}))
    request = request._replace(trace=Trace())
    with suppress(ModelTimedOut):
        await model.complete(request)
    assert isinstance(request.trace, Trace)
    return request.trace


@SANDBOXES
async def test_a_program_may_leave_its_steps_in_a_file_which_tells_loads_of_the_skill(
    sandbox: Any, tmp_path: Path
) -> None:
    request = Request("hello", skill=a_skill(tmp_path), sandbox=sandbox)
    trace = await stepping(request)
    trajectory = trace.trajectory()
    assert trajectory is not None
    asked, step = trajectory.steps
    assert (asked.text, step.text, step.input_tokens, step.output_tokens) == ("hello", "hm", 7, 3)
    assert trajectory.facts()["tool_calls"] == {"read": 1}
    assert (trace.loaded, trajectory.ended) == (True, True)


async def test_a_bare_baseline_that_finds_the_candidates_skill_is_noticed(tmp_path: Path) -> None:
    skill = a_skill(tmp_path)
    bare = Request("hello", others=(skill,), sandbox="off")
    assert (await stepping(bare, str(tmp_path))).loaded is True
    assert (await stepping(bare)).loaded is False
    assert (await stepping(Request("hello", sandbox="off"))).loaded is None


async def test_a_program_that_was_stopped_keeps_the_steps_that_it_had_left() -> None:
    trajectory = (
        await stepping(Request("hello", timeout_seconds=4, sandbox="off"), seconds="30")
    ).trajectory()
    assert trajectory is not None
    assert trajectory.steps[-1].text == "hm"
    assert not trajectory.ended


async def test_steps_behind_a_link_to_elsewhere_are_not_read(tmp_path: Path) -> None:
    document = {"schema_version": "ATIF-v1.8", "steps": [{"source": "agent", "message": "secret"}]}
    (tmp_path / "secret.json").write_text(json.dumps(document))
    script = f"import os; os.symlink({str(tmp_path / 'secret.json')!r}, os.environ['HOME'] + '/steps.json')"
    command = CommandSpec(argv=(sys.executable, "-c", script), trajectory="{home}/steps.json")
    request = Request("hello", sandbox="off", trace=Trace())
    await model_for("command:it", ModelSettings(commands={"it": command})).complete(request)
    assert cast(Trace, request.trace).trajectory() is None
