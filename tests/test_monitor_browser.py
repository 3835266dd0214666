"""Flower in a real browser: closed without the password, a run's batches with it, and nothing of what was asked."""

import json
import re

import pytest
from browsing import ask, await_heard_worker, free_port
from chromium import browser, watch
from conftest import start_server
from running import standalone, start_uplift, uplift, worker

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("monitor-browser")]

PASSWORD = "open-sesame-please"
PROMPT, SKILL, EXPECTED = "canary-of-the-prompt", "canary-of-the-skill", "canary-of-the-answer"
KEY = "sk-canary-of-the-key"
SECRETS = (PROMPT, SKILL, EXPECTED, KEY, PASSWORD)


def a_suite_with_canaries(folder):
    tasks = [
        {
            "id": f"names-it-{number}",
            "prompt": f"{PROMPT}: say it",
            "judge": {"type": "contains", "expected": [EXPECTED]},
        }
        for number in range(3)
    ]
    suite = folder / "suite.yaml"
    suite.write_text(json.dumps({"skill_id": "poem", "version": "1.0", "tasks": tasks}))
    (folder / "skill").mkdir()
    (folder / "skill" / "SKILL.md").write_text(f"---\nname: poem\ndescription: Poems.\n---\n{SKILL}\n")
    return suite


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """`uplift monitor`, which has seen a whole run; gives its address and the run's id."""
    folder = tmp_path_factory.mktemp("f")
    server, url = start_server(folder)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    given = {"UPLIFT_MONITOR_PASSWORD": PASSWORD}
    process = start_uplift("monitor", "--broker", url, "--port", str(port), cwd=folder, env=given)
    try:
        while ask(f"{address}/healthcheck")[0] != 200:
            assert process.poll() is None, process.stderr.read()
        with worker(url, folder, ANTHROPIC_API_KEY=KEY):
            await_heard_worker(address, f"uplift:{PASSWORD}")
            suite = a_suite_with_canaries(folder)
            ended = uplift(*standalone(suite, "--model", "sim:candidate=1", "--broker", url), cwd=folder)
            assert ended.code in (0, 1), ended.err
            [artifact] = (folder / "state" / "evaluations").glob("*.json")
            yield address, artifact.stem
    finally:
        process.kill()
        process.communicate()
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def logged_in(chromium):
    """A page whose browser knows the password."""
    context = chromium.new_context(http_credentials={"username": "uplift", "password": PASSWORD})
    yield watch(context.new_page())
    context.close()


def test_without_the_password_no_page_opens(chromium, flower):
    address, _ = flower
    for wrong in (None, {"username": "uplift", "password": "wrong"}):
        context = chromium.new_context(**({"http_credentials": wrong} if wrong else {}))
        page = context.new_page()
        for path in ("/", "/tasks", "/workers", "/broker", "/metrics", "/api/tasks"):
            assert is_refused(page, address + path)
        context.close()


def is_refused(page, url):
    """Whether the server said 401: the browser shows that answer, or an error page of its own."""
    from playwright.sync_api import Error

    try:
        answer = page.goto(url)
        return answer.status == 401 and answer.text() == "log in to see this\n"
    except Error as problem:
        return "ERR_INVALID_AUTH_CREDENTIALS" in str(problem)


def test_with_the_password_the_tasks_page_lists_the_runs_batches(logged_in, flower):
    address, run_id = flower
    logged_in.page.goto(f"{address}/tasks")
    rows = logged_in.page.locator("#tasks-table tbody tr")
    rows.filter(has_text=run_id).nth(5).wait_for()
    batches = [re.sub(r"\s+", " ", text) for text in rows.filter(has_text=run_id).all_inner_texts()]
    assert len(batches) == 6  # three tasks in two arms, one attempt each
    for number in range(1, 7):
        named = rf"run {re.escape(run_id)} batch {number}/6: tasks names-it-\d"
        assert any(re.search(named, text) for text in batches), batches
    assert all("SUCCESS" in text for text in batches)
    assert all(url.startswith(address) for url in logged_in.requests)


def test_the_search_field_finds_a_run(logged_in, flower):
    address, run_id = flower
    logged_in.page.goto(f"{address}/tasks")
    rows = logged_in.page.locator("#tasks-table tbody tr")
    rows.filter(has_text=run_id).first.wait_for()
    search = logged_in.page.locator("input[type=search]")
    search.fill("args:no-such-run")
    rows.filter(has_text=run_id).first.wait_for(state="detached")
    search.fill(f"args:{run_id}")
    rows.filter(has_text=run_id).nth(5).wait_for()


def test_no_page_shows_a_prompt_a_skill_an_answer_or_a_secret(logged_in, flower):
    address, run_id = flower
    page = logged_in.page
    page.goto(f"{address}/tasks")
    page.locator("#tasks-table tbody tr").filter(has_text=run_id).first.wait_for()
    shown = [page.content()]
    [job, *_] = json.loads(ask(f"{address}/api/tasks", f"uplift:{PASSWORD}")[1])
    for path in (f"/task/{job}", "/", "/workers", "/broker", "/api/tasks", "/api/workers", "/metrics"):
        page.goto(address + path)
        page.wait_for_load_state("networkidle")
        shown.append(page.content())
    assert sum(run_id in text for text in shown) == 3  # the list, one batch's details, the list as JSON
    for secret in SECRETS:
        assert not any(secret in text for text in shown), secret
