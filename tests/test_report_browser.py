"""The report in a real browser: it filters, searches, opens tasks, and nothing in the data runs or leaves."""

import json
import re

import pytest
from builders import a_record
from chromium import browser, expect, watch
from hostile_texts import MARKUP, PAYLOADS, hostile_material
from running import SKILL, uplift

from aggregate.artifact import build
from aggregate.records.run_info import CandidateInfo, RunInfo
from aggregate.report import html
from aggregate.report.result_tables import Material

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report-browser")]  # one browser, one run
SHOWN = [payload for payload in MARKUP if payload.isprintable()]
# Inside the page, because asking for each step from outside takes half a second a task.
OPEN_EACH = """async () => {
  const dialog = document.querySelector('dialog');
  const until = async met => { while (!met()) await new Promise(next => setTimeout(next, 1)); };
  const shown = [];
  for (let number = 0; number < document.querySelectorAll('#rows li').length; number++) {
    document.querySelectorAll('#rows li')[number].querySelector('a').click();
    await until(() => dialog.open && dialog.querySelector('.side pre.output'));
    const outputs = [...dialog.querySelectorAll('.side pre.output')].map(output => output.innerText);
    shown.push([dialog.querySelector('h2').innerText, outputs]);
    dialog.querySelector('button[aria-label=Close]').click();
    await until(() => !dialog.open && !location.hash.includes('task='));
  }
  return shown;
}"""


def a_hostile_suite(folder):
    """Every payload as prompt, description, tag and expected text; the simulated model says what is expected."""
    tasks = [
        {
            "id": f"task-{number:02}",
            "description": payload,
            "prompt": f"Say this: {payload}",
            "judge": {"type": "contains", "expected": [payload]},
            "tier": f"T{number % 3}",
            "tags": ["odd" if number % 2 else "even"],
        }
        for number, payload in enumerate(SHOWN)
    ]
    suite = {"skill_id": "</script><script>window.ran=1</script>", "version": "1.0", "tasks": tasks}
    folder.joinpath("suite.yaml").write_text(json.dumps(suite, ensure_ascii=True), "utf-8")
    folder.joinpath("SKILL.md").write_text(SKILL)


@pytest.fixture(scope="module")
def real_page(tmp_path_factory):
    """The page that `evaluate` wrote by itself, from workers' records."""
    folder = tmp_path_factory.mktemp("real")
    a_hostile_suite(folder)
    words = ["evaluate", "--standalone", "--task-suite", "suite.yaml", "--skill-path", "SKILL.md"]
    model = "sim:baseline=0.4,candidate=0.8,cost=0.002,seed=3"
    ended = uplift(*words, "--model", model, "--pass-k", "3", "--state-root", "state", cwd=folder)
    assert ended.code == 0, ended.err
    [page] = folder.glob("state/runs/*/report.html")
    assert f"page: {page.relative_to(folder)}" in ended.err
    return page


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def open_page(chromium, request):
    """Opens a file as a reader would; afterwards nothing may have been loaded, complained of or run."""
    opened = []

    def visit(path, fragment="", **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        seen = watch(context.new_page())
        seen.page.goto(path.as_uri() + fragment)
        opened.append((seen, path, context))
        return seen.page

    yield visit
    for seen, path, context in opened:
        assert seen.page.evaluate("window.ran") is None
        assert seen.problems == []
        folder = path.parent.as_uri()
        assert [url for url in seen.requests if not url.startswith((folder, "data:,"))] == []
        context.close()


def rows(page):
    return page.locator("#rows li")


def focused(page):
    return page.locator(":focus")


def test_the_first_screen_says_what_was_found(real_page, open_page):
    page = open_page(real_page)
    expect(page.locator("h1")).to_have_text("BETTER on tasks like these (simulated)")
    expect(page.locator(".verdict .chip")).to_have_text("gate: pass")
    expect(page.locator(".notice").first).to_contain_text("simulated")
    chart = page.locator("svg.delta")
    assert chart.bounding_box()["y"] < 900
    assert re.search(r"\+\d+.* points, between", chart.locator("desc").text_content())


def test_filters_and_search_narrow_the_list_and_live_in_the_address(real_page, open_page):
    page = open_page(real_page)
    expect(rows(page)).to_have_count(len(SHOWN))
    page.get_by_role("button", name=re.compile("Changed")).click()
    expect(page).to_have_url(re.compile("filter=changed"))
    expect(rows(page)).not_to_have_count(len(SHOWN))
    changed = rows(page).count()
    assert 0 < changed < len(SHOWN)
    page.get_by_role("button", name=re.compile("^All")).click()
    page.get_by_label("Search tasks").fill("task-07")
    expect(rows(page)).to_have_count(1)
    expect(page.locator("#count")).to_have_text(f"1 of {len(SHOWN)} shown")
    again = open_page(real_page, "#filter=changed")
    expect(rows(again)).to_have_count(changed)


def test_the_list_is_sorted_by_difference_with_an_interval_each(real_page, open_page):
    page = open_page(real_page)
    expect(rows(page)).to_have_count(len(SHOWN))
    shown = [float(text) for text in page.locator("#rows .by").all_inner_texts()]
    assert shown == sorted(shown)  # worst first
    for part in ("a.open", ".by", "circle", "button.dot"):
        row, inside = rows(page).nth(1).bounding_box(), rows(page).nth(1).locator(part).first.bounding_box()
        assert row["y"] <= inside["y"] < inside["y"] + inside["height"] <= row["y"] + row["height"]
    label = rows(page).first.locator("svg").get_attribute("aria-label")
    assert re.fullmatch(r"[-+]?[\d.]+ points, between [-+]?[\d.]+ and [-+]?[\d.]+", label)
    # A line is green or red only where its interval leaves out 0.
    looks = (
        "lines => lines.map(line => [line.className.baseVal, line.closest('svg').getAttribute('aria-label')])"
    )
    for look, said in page.locator("#rows line.whisker").evaluate_all(looks):
        low, high = map(float, re.search(r"between (\S+) and (\S+)", said).groups())
        assert look == f"whisker {'better' if low > 0 else 'worse' if high < 0 else 'same'}"


def test_a_task_opens_into_prompt_both_outputs_and_judgments(real_page, open_page):
    page = open_page(real_page, "#q=task-07")
    page.get_by_role("link", name="task-07", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.locator("pre").first.inner_text() == f"Say this: {SHOWN[7]}"
    for arm in ("baseline", "candidate"):
        side = dialog.get_by_role("region", name=arm)
        expect(side.locator("pre")).to_be_visible()
        expect(side.locator(".judgment")).to_contain_text("contains")
        for fact in ("Tokens", "Cost", "Model time", "Turns"):
            expect(side).to_contain_text(fact)
    expect(page).to_have_url(re.compile("task=task-07"))
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page).not_to_have_url(re.compile("task="))


def test_a_dot_opens_its_own_attempt_and_differences_are_marked(real_page, open_page):
    page = open_page(real_page, "#filter=changed&sort=best")
    row = rows(page).first
    row.locator("button.dot[data-arm='1'][data-attempt='2']").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("attempt 3 of 3")).to_have_count(2)
    expect(dialog.locator("mark.candidate")).not_to_have_count(0)
    dialog.get_by_label("Mark what differs").uncheck()
    expect(dialog.locator("mark")).to_have_count(0)


def test_an_example_of_why_it_won_opens_both_outputs_that_differ(real_page, open_page):
    page = open_page(real_page)
    page.locator(".moved a").first.click()
    dialog = page.get_by_role("dialog")
    outcomes = dialog.locator(".outcome .chip").all_inner_texts()
    assert sorted(outcomes) in (["failed", "passed"], ["passed", "timed out"])
    assert dialog.locator("mark.baseline, mark.candidate").count() > 0


def test_several_candidates_have_a_tab_each_with_their_own_answer_and_tasks(tmp_path, open_page):
    records = [
        a_record(task, arm, outcome="passed" if arm == good else "failed")
        for task, good in (("a", "candidate:x"), ("b", "candidate:x"), ("c", "candidate:y"))
        for arm in ("baseline", "candidate:x", "candidate:y")
    ]
    first, other = build.build(RunInfo.from_records(records), records)
    page = open_page(html.write(Material(first, lambda: records, others=(other,)), tmp_path / "report.html"))
    expect(page.locator(".candidates tbody th")).to_have_text(["x", "y"])
    for tab, points in (("x", ["0", "+100", "+100"]), ("y", ["0", "0", "+100"])):
        page.get_by_role("navigation").get_by_role("link", name=tab).click()
        expect(page.locator("#rows .by")).to_have_text(points)
        expect(page.locator(".verdict:visible")).to_contain_text(tab)
        assert page.locator(".headline:visible").count() == 1
    page.reload()
    expect(page.locator("#rows .by")).to_have_text(points)


def test_the_page_of_a_run_that_ran_nothing_still_changes_its_colours(tmp_path, open_page):
    [skipped] = build.build(RunInfo(run_id="r", candidates=(CandidateInfo(score=2.0, candidate_id="c"),)), [])
    page = open_page(html.write(Material(skipped, list), tmp_path / "report.html"), color_scheme="light")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_everything_can_be_done_with_the_keyboard(real_page, open_page):
    page = open_page(real_page)
    page.keyboard.press("2")
    expect(page).to_have_url(re.compile("filter=failed"))
    page.keyboard.press("1")
    page.keyboard.press("/")
    page.keyboard.type("even")
    expect(page).to_have_url(re.compile("#q=even$"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    second, third = rows(page).locator("a").all_inner_texts()[1:3]
    expect(focused(page)).to_have_text(second)
    page.keyboard.press("ArrowRight")
    expect(focused(page)).to_have_attribute("aria-label", re.compile("attempt 1"))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("h2")).to_have_text(second)
    page.keyboard.press("ArrowRight")
    expect(dialog.get_by_text("attempt 2 of 3")).to_have_count(2)
    page.keyboard.press("j")
    expect(dialog.locator("h2")).to_have_text(third)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(focused(page)).to_have_class("open")
    expect(focused(page)).to_have_text(third)


def test_light_and_dark_follow_the_system_and_a_button_overrules_it(real_page, open_page):
    def background(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background(open_page(real_page, color_scheme="light"))
    page = open_page(real_page, color_scheme="dark")
    dark = background(page)
    assert light != dark
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("body")).to_have_css("background-color", light)
    page.keyboard.press("t")
    expect(page.locator("body")).to_have_css("background-color", dark)


def test_on_a_phone_nothing_is_wider_than_the_screen(real_page, open_page):
    page = open_page(real_page)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    rows(page).first.locator("a").click()
    page.get_by_role("dialog").wait_for()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 390


def test_on_paper_all_tasks_are_there_and_controls_are_not(real_page, open_page):
    page = open_page(real_page)
    page.emulate_media(media="print")
    expect(page.locator("#controls")).to_be_hidden()
    expect(rows(page)).to_have_count(len(SHOWN))
    assert page.pdf().startswith(b"%PDF")


def test_no_payload_runs_wherever_it_stands_and_each_is_shown_as_text(tmp_path, open_page):
    assert len(PAYLOADS) >= 50
    small = {"width": 400, "height": 300}  # drawn for each task that opens, by the processor
    page = open_page(html.write(hostile_material(), tmp_path / "report.html"), viewport=small)
    expect(rows(page)).to_have_count(len(PAYLOADS))
    shown = page.evaluate(OPEN_EACH)
    assert len(shown) == len({name for name, _ in shown}) == len(PAYLOADS)
    assert all(outputs for _, outputs in shown)
    plain = [(name, outputs) for name, outputs in shown if name in SHOWN[1:]]
    assert plain == [(name, [f"baseline {name}", f"candidate {name}"]) for name, _ in plain]
    assert len(plain) == len(SHOWN) - 1


def test_characters_that_hide_or_reorder_text_are_written_out(tmp_path, open_page):
    page = open_page(html.write(hostile_material(), tmp_path / "report.html"), "#q=evil")
    rows(page).first.locator("a").click()
    shown = page.get_by_role("dialog").locator(".side pre").first.inner_text()
    for name in ("U+202E", "U+2066", "U+200B", "U+FEFF", "U+E0041"):
        assert f"⟨{name}⟩" in shown


def test_texts_in_the_folder_beside_the_page_open_without_a_request_that_leaves(tmp_path, open_page):
    path = html.write(hostile_material(), tmp_path / "report.html", inline_bytes=10)
    assert (tmp_path / "report-texts").is_dir()
    page = open_page(path, "#q=__proto__")
    rows(page).first.locator("a").click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.locator(".side pre").first.inner_text() == "baseline __proto__"


def test_a_missing_folder_of_texts_is_said_and_not_a_dead_page(tmp_path, open_page, chromium):
    path = html.write(hostile_material(), tmp_path / "report.html", inline_bytes=10)
    (tmp_path / "report-texts").rename(tmp_path / "moved")
    context = chromium.new_context()
    page = context.new_page()
    page.clock.install()
    page.goto(path.as_uri() + "#q=__proto__")
    rows(page).first.locator("a").click()
    page.clock.fast_forward(20_000)
    page.get_by_text("The texts could not be read").wait_for()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("opened", ["page", "task"])
def test_labels_and_contrast_pass_axe(real_page, chromium, scheme, opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    # Axe brings a script of its own into the page, which the page's policy rightly refuses.
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(real_page.as_uri() + ("#task=task-07" if opened == "task" else ""))
    page.locator("dialog[open]" if opened == "task" else "#rows li").first.wait_for()
    response = axe.run(page).response
    found = response["violations"]
    assert {"color-contrast", "button-name"} <= {one["id"] for one in response["passes"]}
    assert [(one["id"], [node["html"][:150] for node in one["nodes"][:3]]) for one in found] == []
    context.close()
