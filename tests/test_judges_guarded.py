"""Code of an output that is run by `uplift_judge` and attacks the tests, their fixtures, their report and its siblings.

One judgment a way runs all of it, each as a test that fails where the attack found the secret of the fixtures. What
cannot hold without bubblewrap is said here, and tested as such; docs/isolation.md lists the same.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pydantic import TypeAdapter
from pytest_judging import WAYS, Way, a_suite, children, judged, needs, processes_naming

from judges import judge
from judges.checks import pytest_file
from judges.judgment import Completion, Workspace
from judges.sandbox import warm_pool
from judges.sandbox.warm_pool import Work
from judges.spec import JudgeSpec

ROOT = os.geteuid() == 0
LINUX = sys.platform == "linux"
pytestmark = pytest.mark.xdist_group("guarded")

# What attacks share. Of a machine's processes only those of this judgment are attacked: their command lines name its
# folder. In a sandbox these are all.
PRELUDE = r"""
import ctypes, glob, json, os, pathlib, re, resource, signal, socket, stat, struct, sys, time
HERE = pathlib.Path(os.environ["AI_OUTPUT_FILE"])
TOP = HERE.parents[3] if HERE.parents[1].name == "inputs" and HERE.parts[1] != "sandbox" else pathlib.Path("/sandbox")
libc = ctypes.CDLL(None, use_errno=True)

def look(data):
    for found in re.findall(rb"SECRET-[0-9a-f]{16}", data if isinstance(data, bytes) else str(data).encode()):
        print(found.decode(), flush=True)

def read(path):
    try:
        with open(path, "rb") as file:
            look(file.read(1 << 24))
    except OSError:
        pass

def others():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            mine = "/sandbox/" in str(HERE) or str(TOP).encode() in open(f"/proc/{name}/cmdline", "rb").read()
            if mine and int(name) != os.getpid():
                yield int(name)
        except OSError:
            pass

def memory(process):
    try:
        maps, mem = open(f"/proc/{process}/maps").read(), open(f"/proc/{process}/mem", "rb", 0)
    except OSError:
        return b""
    parts = []
    for line in maps.splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if " rw" in line and end - begin < 1 << 26:
            try:
                mem.seek(begin)
                parts.append(mem.read(end - begin))
            except (OSError, ValueError, OverflowError):
                pass
    return b"".join(parts)

def forge(descriptor, nonces=("",)):
    for nonce in nonces:
        line = json.dumps({"nonce": nonce, "event": "test", "test": "FORGED", "outcome": "passed", "line": ""})
        try:
            os.write(descriptor, line.encode() + b"\n")
        except OSError:
            pass

def nonces(data):
    return [found.decode() for found in set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", data))]
"""

ATTACKS = {
    # the fixtures
    "fixtures beside the output": "for path in HERE.parents[1].rglob('*'): read(path)",
    "fixtures by the way of ..": "for path in glob.glob(f'{HERE.parent}/../fixtures/*'): read(path)",
    "fixtures of any sandbox": "for path in glob.glob('/sandbox/**', recursive=True): read(path)",
    "fixtures by the root of processes": """
        for process in [1, "self", *others()]:
            for path in glob.glob(f"/proc/{process}/root/sandbox/inputs/**", recursive=True): read(path)
    """,
    "fixtures by the working folder of processes": """
        for process in [1, os.getppid(), *others()]:
            for path in glob.glob(f"/proc/{process}/cwd/../inputs/fixtures/*"): read(path)
    """,
    "fixtures below what was mounted over them": """
        for flags in (0, 2, 8): libc.umount2(b"/sandbox/inputs/fixtures", flags)
        libc.mount(b"/sandbox/inputs", b"/sandbox/tmp", b"", 4096 | 16384, b"")
        for path in glob.glob("/sandbox/*/fixtures/*") + glob.glob("/sandbox/tmp/*"): read(path)
    """,
    "fixtures by new namespaces": """
        for flags in (0x10000000, 0x10020000, 0x20000, 0x20000000): libc.unshare(flags)
        libc.umount2(b"/sandbox/inputs/fixtures", 2)
        read("/sandbox/inputs/fixtures/expected.txt")
    """,
    "fixtures by the namespaces of others": """
        for process in [1, *others()]:
            for kind in ("user", "mnt", "pid"):
                try: libc.setns(os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY), 0)
                except OSError: pass
        read("/sandbox/inputs/fixtures/expected.txt")
    """,
    "fixtures by inode": """
        handle = ctypes.create_string_buffer(struct.pack("Ii", 8, 1) + bytes(128))
        for number in range(1, 200):
            handle[8:12] = struct.pack("I", number)
            found = libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, 0)
            if found >= 0: look(os.read(found, 1000))
    """,
    "fixtures out of a chroot": """
        try:
            os.mkdir("jail"); os.chroot("jail")
            for _ in range(9): os.chdir("..")
            os.chroot(".")
        except OSError: pass
        for path in glob.glob("/sandbox/inputs/fixtures/*"): read(path)
    """,
    "fixtures imported as modules": """
        sys.path += [str(HERE.parents[1] / "fixtures"), "/sandbox/inputs/fixtures"]
        for name in ("test_it", "helper", "conftest"):
            try: look(vars(__import__(name)))
            except Exception: pass
    """,
    "fixtures by descriptors of folders": """
        for number in range(3, 256):
            for path in ("fixtures/expected.txt", "../fixtures/expected.txt", "expected.txt"):
                try: look(os.read(os.open(path, os.O_RDONLY, dir_fd=number), 1000))
                except OSError: pass
    """,
    "fixtures by a link that is made first": """
        for target in ("/sandbox/inputs/fixtures", "/proc/1/root/sandbox/inputs/fixtures"):
            os.symlink(target, "link")
            read("link/expected.txt")
            os.unlink("link")
    """,
    "the suite's copies in temporary folders": "for path in TOP.glob('uplift-*/inputs/fixtures/*'): read(path)",
    # memory
    "memory of other processes": "for process in [1, os.getppid(), *others()]: look(memory(process))",
    "own memory": "look(memory('self'))",
    "memory by process_vm_readv": """
        room = ctypes.create_string_buffer(1 << 16)
        for process in [1, os.getppid(), *others()]:
            try: maps = open(f"/proc/{process}/maps").read()
            except OSError: continue
            for line in maps.splitlines():
                begin = int(line.split("-")[0], 16)
                local, remote = struct.pack("NN", ctypes.addressof(room), 1 << 16), struct.pack("NN", begin, 1 << 16)
                if libc.process_vm_readv(process, local, 1, remote, 1, 0) > 0: look(room.raw)
    """,
    "memory by ptrace": """
        for process in [1, os.getppid(), *others()]:
            if libc.ptrace(16, process, 0, 0) == 0 or libc.ptrace(0x4206, process, 0, 0) == 0:
                print("traced"); look(memory(process)); look("SECRET-" + "0" * 16)
    """,
    "what the interpreter still holds": """
        import gc
        for thing in gc.get_objects():
            if isinstance(thing, (dict, list, tuple, str)) and len(thing) < 10000:
                try: look(repr(thing))
                except Exception: pass
    """,
    "frames of whoever runs this": """
        frame = sys._getframe()
        while frame is not None:
            look(repr(frame.f_locals)); frame = frame.f_back
    """,
    "a core dump of the parent": """
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        for path in glob.glob("core*") + glob.glob("/tmp/core*"): read(path)
    """,
    "environments and command lines": """
        for process in [1, *others()]:
            for thing in ("environ", "cmdline", "auxv", "stack", "syscall"): read(f"/proc/{process}/{thing}")
    """,
    # the report
    "inherited descriptors": """
        found = ["", *nonces(memory("self"))]
        for number in range(3, 64): forge(number, found)
    """,
    "descriptors by way of /proc": """
        for process in [1, os.getppid(), *others()]:
            for path in glob.glob(f"/proc/{process}/fd/*"):
                try: forge(os.open(path, os.O_WRONLY | os.O_NONBLOCK), nonces(memory(process)) or [""])
                except OSError: pass
    """,
    "descriptors by pidfd_getfd": """
        for process in [1, os.getppid(), *others()]:
            try: held = os.pidfd_open(process)
            except OSError: continue
            for number in range(16):
                taken = libc.syscall(438, held, number, 0)
                if taken >= 0: print("taken"); look("SECRET-" + "0" * 16); forge(taken, nonces(memory(process)))
    """,
    "an answer in the name of whoever started this": """
        for number in range(3, 1024):
            try: os.write(number, b"exited 0")
            except OSError: pass
        os._exit(9)
    """,
    "a process of its own with the tests' rights": """
        for number in range(3, 64):
            os.environ["UPLIFT_ASK_FD"] = str(number)
            words = ["/bin/sh", "-c", "cat /sandbox/inputs/fixtures/*"]
            try: import uplift_judge; look(uplift_judge.run_command(words, timeout=1).stdout)
            except Exception: pass
    """,
    "sockets that have names": """
        for line in open("/proc/net/unix").read().splitlines()[1:] if "/sandbox/" in str(HERE) else []:
            name = line.split()[-1]
            if name.startswith(("@", "/")):
                try: socket.socket(socket.AF_UNIX).connect(name.replace("@", chr(0)))
                except OSError: continue
                look("SECRET-" + "0" * 16)
    """,
    "the terminal": """
        import fcntl
        for number in (0, 1, 2):
            for byte in b"x":
                try: fcntl.ioctl(number, 0x5412, bytes([byte])); look("SECRET-" + "0" * 16)
                except OSError: pass
    """,
    "kernel keyrings": """
        for number in (-1, -2, -3, -4, -5):
            room = ctypes.create_string_buffer(4096)
            if libc.syscall(250, 11, number, room, 4096) > 0: print("keys"); look("SECRET-" + "0" * 16)
    """,
    "shared memory": """
        for path in glob.glob("/dev/shm/*") + glob.glob("/dev/mqueue/*"): read(path)
        for number in range(64):
            place = libc.shmat(number, 0, 0o10000)
            if place != -1: print("attached"); look("SECRET-" + "0" * 16)
    """,
    # what is handed over
    "the output, which is not the code's to change": """
        try: HERE.write_text("better")
        except OSError: pass
        if HERE.read_text() == "better": look("SECRET-" + "0" * 16)
    """,
    "rights had back": """
        for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
            try: call(); look("SECRET-" + "0" * 16)
            except OSError: pass
        caps = dict(line.split(":", 1) for line in open("/proc/self/status"))
        if int(caps["CapEff"], 16) & ~4 or caps["NoNewPrivs"].strip() != "1": look("SECRET-" + "0" * 16)
    """,
    "a set-user-id program": """
        import subprocess
        for path in glob.glob("/usr/bin/*su*") + glob.glob("/bin/mount"):
            if os.stat(path).st_mode & stat.S_ISUID:
                told = subprocess.run([path, "-c", "id -u"], capture_output=True, stdin=subprocess.DEVNULL, timeout=5)
                if told.stdout.strip() == b"0": look("SECRET-" + "0" * 16)
    """,
    "priorities and limits of others": """
        for process in [1, *others()]:
            try: resource.prlimit(process, resource.RLIMIT_NOFILE, (0, 0))
            except OSError: pass
    """,
}
# Reading files, which no user without a sandbox is kept from; where the worker is not root, all of its user's too.
NOT_HELD_WITHOUT_SANDBOX = {
    "the suite's copies in temporary folders",
    *([] if ROOT else ["fixtures by the working folder of processes"]),
}
# What does harm, and must end as a failed test of a judgment that goes on.
HARMS = {
    "prints without end": "while True: print('x' * 10000)",
    "takes all memory": "hog = bytearray(64 * 1024**3)",
    "never ends": "while True: pass",
    "ignores every signal": (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, 1)\n    except OSError: pass\nwhile 1: pass"
    ),
    "leaves a daemon with its output open": "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)",
    "kills its first process and all else": (
        "import os\nfor n in (1, -1):\n    try: os.kill(n, 9)\n    except OSError: pass"
    ),
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "fills its folders": "n = 0\nwhile True:\n    open(f'{n}', 'wb').write(b'x' * 10**7); n += 1",
    "closes what it prints to": "import os, time\nos.closerange(0, 99)\ntime.sleep(600)",
    "is no Python": "def (:",
    "is not even text": "\\0\\ud800",
}
# Left out where it would hurt whatever else the user runs, the tests themselves included.
KILLS, LIMITS = "kills its first process and all else", "priorities and limits of others"

LIKE_PYTHON = """
import atexit, logging, sys, threading, time
logging.basicConfig()
logging.warning("told")
atexit.register(print, "bye")
print(__name__, sys.argv)
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"), 1 / 0)).start()
sys.exit(3)
"""
LEAVES = """
import pathlib, tempfile
for folder in {pathlib.Path.cwd(), pathlib.Path.home(), pathlib.Path(tempfile.gettempdir())}:
    print((folder / "left").exists())
    (folder / "left").write_text("x")
"""

TEST_FILE = """
import pathlib, pytest
from uplift_judge import RunError, output, run_command, run_python

SECRET = pathlib.Path(__file__).with_name("expected.txt").read_text()
PRELUDE, ATTACKS, HARMS, LEAVES = {prelude!r}, {attacks!r}, {harms!r}, {leaves!r}
LIKE_PYTHON = {like_python!r}

@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name):
    ran = run_python(PRELUDE + ATTACKS[name], timeout=60)
    assert "SECRET-" not in ran.stdout, ran.stdout
    # 137: without a sandbox it can hit its own supervisor; 1: it took all files from a process of its own.
    assert ran.stderr == "" and ran.exit_code in (0, 1, 9, 137), ran

@pytest.mark.parametrize("name", HARMS)
def test_harm(name):
    try:
        ran = run_python(HARMS[name], timeout=0.6)
    except RunError as ended:
        assert "is no" not in name and "daemon" not in name
    else:
        assert ran.stdout == ""

def test_what_one_leaves_the_next_does_not_find():
    for _ in range(2):
        assert "True" not in run_python(LEAVES).stdout

def test_own_memory_is_read():
    ran = run_python(PRELUDE + "told = memory('self'); print(len(told) > 10**6, nonces(told))")
    assert ran.stdout.startswith("True"), ran
    print(ran.stdout)

def test_output_and_stdin_arrive():
    assert output() == "an answer"
    assert run_command(["cat"], stdin="abc").stdout == "abc"
    ran = run_python(LIKE_PYTHON)
    assert ran.stdout.splitlines() == ["__main__ ['-c']", "thread", "bye"], ran
    assert ran.stderr.startswith("WARNING:root:told\\n") and "ZeroDivisionError" in ran.stderr, ran
    assert ran.exit_code == 3
    assert run_python("import sys; print(sys.stdin.read()[::-1])", stdin="abc").stdout == "cba\\n"
"""


@dataclass(frozen=True)
class Outcomes:
    """A way, and how its tests ended."""

    way: Way
    outcomes: dict[str, tuple[str, str]]


@pytest.fixture(scope="module", params=WAYS)
def all_at_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    way: Way = request.param
    needs(way)
    folder = tmp_path_factory.mktemp("guarded")
    exposed = way == "plain" and not ROOT
    attacks = {name: dedent(code) for name, code in ATTACKS.items() if name != LIMITS or not exposed}
    harms = {name: code for name, code in HARMS.items() if name != KILLS or way != "plain"}
    suite = a_suite(
        folder,
        TEST_FILE.format(
            prelude=PRELUDE, attacks=attacks, harms=harms, leaves=LEAVES, like_python=LIKE_PYTHON
        ),
    )
    (suite / "fixtures" / "expected.txt").write_text(f"SECRET-{secrets.token_hex(8)}")
    work = Work("test_it.py", suite / "fixtures", b"an answer", secrets.token_hex(16), (), 500)
    left = folder / "left" if way == "cold" else None
    if left is not None:
        left.mkdir()
    workspace = Workspace(suite=suite, left=left, sandbox="off" if way == "plain" else "required")
    before, tempfile.tempdir = children(), str(folder)
    try:
        result = pytest_file._run(work, workspace, None, threading.Event())
    finally:
        tempfile.tempdir = None
    warm_pool.close()
    assert children() <= before
    assert processes_naming(str(folder)) == []
    report = pytest_file.read(result.report, work.nonce)
    assert (report.ended, report.forged) == (True, False), result.output
    assert not any("FORGED" in test for test in report.outcomes)
    assert len(report.outcomes) == len(attacks) + len(harms) + 3
    assert work.nonce.encode() not in result.output
    return Outcomes(way, {test.partition("::")[2]: told for test, told in report.outcomes.items()})


@pytest.mark.skipif(not LINUX, reason="attacks what Linux has")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_finds_nothing_unless_there_is_no_sandbox(all_at_once: Outcomes, name: str) -> None:
    if all_at_once.way == "plain" and name == LIMITS and not ROOT:
        pytest.skip("it would hurt whatever else its user runs")
    outcome, line = all_at_once.outcomes[f"test_attack[{name}]"]
    held = not (all_at_once.way == "plain" and name in NOT_HELD_WITHOUT_SANDBOX)
    assert outcome == ("passed" if held else "failed"), line


@pytest.mark.skipif(not LINUX, reason="attacks what Linux has")
@pytest.mark.parametrize("name", HARMS)
def test_harm_ends_with_the_code_that_does_it(all_at_once: Outcomes, name: str) -> None:
    if all_at_once.way == "plain" and name == KILLS:
        pytest.skip("it would kill whatever else its user runs")
    outcome, line = all_at_once.outcomes[f"test_harm[{name}]"]
    assert outcome == "passed", line


@pytest.mark.parametrize(
    "name",
    ["what_one_leaves_the_next_does_not_find", "own_memory_is_read", "output_and_stdin_arrive"],
)
def test_runs_are_apart_and_get_what_is_handed_over(all_at_once: Outcomes, name: str) -> None:
    outcome, line = all_at_once.outcomes[f"test_{name}"]
    assert outcome == "passed", line


# All attacks one after the other, each in a fork; prints the names of those that found the secret.
IN_FORKS = """
import traceback
for name, code in {attacks!r}.items():
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.dup2(theirs, 1)
        try: exec(code)
        except BaseException: print("SECRET-", traceback.format_exc())
        sys.stdout.flush()
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as told:
        if b"SECRET-" in told.read(): print(name)
    os.waitpid(child, 0)
"""
CHECKS = """
import json, pathlib, sys
from uplift_judge import output, run_python, workspace

SECRET = pathlib.Path(__file__).with_name("expected.txt").read_text()

def check(text):
    assert text == output() == "an answer"
    assert [path.name for path in workspace().iterdir()] == ["kept"]
    assert run_python("import os; print(os.listdir(os.environ['AI_WORKSPACE']))").stdout == "['kept']\\n"
    ran = run_python({code!r}, timeout=60)
    return 0.25, json.dumps([ran.exit_code, ran.stdout.splitlines(), ran.stderr.splitlines()])

if __name__ == "__main__":
    print(json.dumps(dict(zip(("score", "reason"), check(sys.stdin.read())))))
"""


@pytest.mark.skipif(not LINUX, reason="attacks what Linux has")
@pytest.mark.parametrize("way", ["cold", "plain"])
@pytest.mark.parametrize(
    "check",
    [
        {"type": "python", "function": "fixtures/checks.py:check"},
        {"type": "command", "argv": ["python", "fixtures/checks.py"]},
    ],
    ids=["python", "command"],
)
async def test_functions_and_programs_run_code_apart_as_tests_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, check: dict[str, Any]
) -> None:
    needs(way)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # What an ordinary user without a sandbox cannot be kept from: it ends the whole judgment, which then fails.
    ends_all = {LIMITS, "descriptors by way of /proc"} if way == "plain" and not ROOT else set()
    # What finds the secret comes last: it is in the memory of these processes then.
    names = sorted(ATTACKS, key=lambda name: (name == LIMITS, name in NOT_HELD_WITHOUT_SANDBOX))
    attacks = {name: dedent(ATTACKS[name]) for name in names if name not in ends_all}
    suite = a_suite(tmp_path, checks=CHECKS.format(code=PRELUDE + IN_FORKS.format(attacks=attacks)))
    (suite / "fixtures" / "expected.txt").write_text(f"SECRET-{secrets.token_hex(8)}")
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "kept").touch()
    workspace = Workspace(
        suite=suite, left=tmp_path / "left", sandbox="off" if way == "plain" else "required"
    )
    spec = TypeAdapter(JudgeSpec).validate_python(check)
    judgment = await judge(spec, Completion(text="an answer"), nobody, workspace)
    assert (judgment.passed, judgment.score, judgment.error) == (False, 0.25, None), judgment.details
    exit_code, *printed = json.loads(judgment.details.partition("0.70: ")[2])
    # As an ordinary user, a fork can also write to what the code itself prints to.
    found, complaints = ([line for line in lines if "FORGED" not in line] for lines in printed)
    assert (exit_code, complaints) == (0, []), judgment.details
    assert set(found) == (NOT_HELD_WITHOUT_SANDBOX if way == "plain" else set())


async def nobody(model: str, prompt: str, *, system: str = "") -> Completion:
    raise AssertionError("no model is to be asked")


async def test_the_tests_are_killed_only_without_a_sandbox_and_by_their_own_user_and_then_they_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # whose processes it may kill
    kills = PRELUDE + dedent("""
        for process in others():
            if b"pytest_plugin" in open(f"/proc/{process}/cmdline", "rb").read():
                try: os.kill(process, signal.SIGKILL)
                except PermissionError: pass
    """)
    suite = a_suite(
        tmp_path,
        f"from uplift_judge import run_python\ndef test_it(): assert run_python({kills!r}).exit_code == 0",
    )
    for way in WAYS:
        needs(way)
        judgment = await judged(suite, way)
        harmed = way == "plain" and not ROOT
        assert (judgment.passed, judgment.error) == (not harmed, None), judgment
        assert ("ended before pytest did" in judgment.details) is harmed
    warm_pool.close()


async def test_modules_that_tests_have_yet_to_import_are_changed_only_without_a_sandbox_and_by_their_own_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    changes = PRELUDE + dedent("""
        for path in [*HERE.parents[1].rglob("helper.py"), *TOP.glob("uplift-*/inputs/fixtures/helper.py")]:
            try: path.write_text("VALUE = 2")
            except OSError: pass
    """)
    code = f"""
        from uplift_judge import run_python

        def test_it():
            assert run_python({changes!r}).stderr == ""
            import helper
            assert helper.VALUE == 1
    """
    suite = a_suite(tmp_path, code, helper="VALUE = 1")
    for way in WAYS:
        needs(way)
        judgment = await judged(suite, way)
        assert (judgment.passed, judgment.error) == (way != "plain" or ROOT, None), judgment
    warm_pool.close()


async def test_tests_that_do_not_use_the_helper_are_judged_as_before_and_said_to_be_unguarded(
    tmp_path: Path,
) -> None:
    plain = await judged(a_suite(tmp_path, "def test_it(): pass"), "plain")
    assert (plain.passed, plain.unguarded) == (True, True)
    assert plain.details == "[without bubblewrap] all 1 tests passed (unguarded)"
    uses = await judged(
        a_suite(tmp_path, "from uplift_judge import output\ndef test_it(): output()"), "plain"
    )
    assert (uses.passed, uses.unguarded) == (True, False)
    assert uses.details == "[without bubblewrap] all 1 tests passed"
