"""What a state root holds is for its own user alone, under any umask; what lies elsewhere keeps to the umask."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from running import Ended, a_suite, processes_below, standalone, start_uplift

from aggregate.text import files
from producer.display import run_list
from producer.state_root import Places

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def uplift(*words: str | Path, cwd: Path) -> Ended:
    """A process of its own: one that is forked from a warm one would have that one's umask."""
    process = start_uplift(*words, cwd=cwd)
    out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out, err)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def walked(root: Path) -> dict[str, int]:
    """The rights of all that is there; a worker's scratch folder is closed as a whole."""
    found = {".": rights(root)}
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            try:
                found[str(path.relative_to(root))] = rights(path)
            except FileNotFoundError:  # written whole and moved, or removed at the end
                continue
        if "tmp" in folders and Path(folder).parent.name == "embedded":
            folders.remove("tmp")
    return found


def open_to_others(root: Path) -> dict[str, str]:
    return {name: oct(mode) for name, mode in walked(root).items() if mode & 0o077}


def test_everything_in_a_state_root_is_private_during_and_after_runs_of_every_kind(
    short_tmp: Path, eventually
) -> None:
    suite, state = a_suite(short_tmp, 8), short_tmp / "deep" / "state"
    places, here = Places(state), ("--state-root", state)
    words = [*standalone(suite, "--model", "sim:latency=0.4", "--in-flight", "1"), *here]
    cache = ("--baseline-cache-dir", state / "cache")
    begun = start_uplift(*words, *cache, cwd=short_tmp)
    eventually(lambda: any(row.done for row in run_list.rows(places, None)))
    assert any("appendonly" in name for name in walked(state))
    assert any(name.endswith("/tmp") for name in walked(state))
    assert open_to_others(state) == {}
    begun.kill()
    begun.communicate()
    eventually(lambda: not processes_below(state))
    (run_id,) = places.run_ids("embedded")
    assert uplift("resume", run_id, *here, cwd=short_tmp).code in (0, 1)
    detached = uplift(*words, "--detach", cwd=short_tmp)
    assert detached.code == 0, detached.err
    assert uplift("watch", detached.out.strip(), *here, cwd=short_tmp).code in (0, 1)
    for form in ("html", "md", "junit", "csv", "benchmark-json"):
        made = uplift("report", run_id, f"--{form}", *here, cwd=short_tmp)
        assert made.code == 0, made.err
    assert uplift("bless", run_id, *here, cwd=short_tmp).code == 0
    assert open_to_others(state) == {}
    assert {"evaluations", "runs", "cache"} < set(walked(state))
    assert rights(state.parent) == 0o755  # only the state root is ours


def test_a_state_root_that_was_there_keeps_its_rights_and_gets_private_files(short_tmp: Path) -> None:
    suite, state = a_suite(short_tmp), short_tmp / "state"
    (state / "evaluations").mkdir(parents=True)
    (state / "evaluations" / "mine.json").write_text("{}")
    assert uplift(*standalone(suite, "--mock"), cwd=short_tmp).code == 0
    was_there = {".", "evaluations", "evaluations/mine.json"}
    assert {name for name, mode in walked(state).items() if mode & 0o077} == was_there
    assert len(list((state / "evaluations").iterdir())) == 2


def test_what_is_written_elsewhere_keeps_to_the_umask(short_tmp: Path) -> None:
    suite, elsewhere = a_suite(short_tmp), short_tmp / "elsewhere"
    outside = ("--output", elsewhere / "artifact.json", "--baseline-cache-dir", elsewhere / "cache")
    assert uplift(*standalone(suite, "--model", "sim", *outside), cwd=short_tmp).code in (0, 1)
    (run_id,) = Places(short_tmp / "state").run_ids("runs")
    for form, name in (("html", "page.html"), ("csv", "tables")):
        words = (f"--{form}", "--output", elsewhere / name, "--state-root", short_tmp / "state")
        assert uplift("report", run_id, *words, cwd=short_tmp).code == 0
    assert (elsewhere / "artifact.json").is_file()
    assert (elsewhere / "page.html").is_file()
    found = {elsewhere, *elsewhere.rglob("*")}
    assert len(found) > 8
    assert {oct(rights(path)) for path in found if path.is_dir()} == {oct(0o755)}
    assert {oct(rights(path)) for path in found if path.is_file()} == {oct(0o644)}


def test_a_private_servers_socket_is_closed_to_others(short_tmp: Path, eventually) -> None:
    from producer import server as servers

    with servers.serving(short_tmp / "server") as served:
        assert rights(Path(served.url.removeprefix("unix://"))) & 0o077 == 0
        umask = subprocess.check_output(["grep", "Umask", f"/proc/{served.server.pid}/status"], text=True)
        assert umask.split() == ["Umask:", "0077"]


def test_a_folder_may_be_named_private_while_another_thread_writes(tmp_path: Path) -> None:
    """Runs of one process, each with a state root of its own, as `aevaluate` makes them."""
    over = threading.Event()

    def name_folders() -> None:
        number = 0
        while not over.is_set():
            files.keep_private(tmp_path / f"state{number % 300}")
            number += 1

    naming = threading.Thread(target=name_folders)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    naming.start()
    try:
        for number in range(20):
            files.write_text("", tmp_path / "elsewhere" / f"{number}.txt")
    finally:
        over.set()
        naming.join()
        sys.setswitchinterval(before)
        files._private.clear()
