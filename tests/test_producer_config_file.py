"""Settings from uplift.toml, pyproject.toml and UPLIFT_* variables: found, checked, laid over each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from running import a_suite, standalone, uplift

from producer.settings import config_file
from producer.settings.config_file import Config, InvalidConfig, params_of, parse_tools
from producer.settings.run_settings import InvalidOption, config_keys
from workers.store.messages import Limits, Price

KEY = "sk-canary-0123456789"
PACKAGES = ("producer", "workers", "aggregate", "judges")


def written(folder: Path, text: str, name: str = "uplift.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def loaded(folder: Path, text: str = "", **environment: str) -> Config:
    """What a file and variables come to; paths and the user's home are out of the way."""
    return config_file.load(written(folder, text), environment=environment)


def mistakes(folder: Path, text: str, **environment: str) -> list[str]:
    """What is said of a broken config, without the file's own path."""
    with pytest.raises(InvalidConfig) as caught:
        loaded(folder, text, **environment)
    return str(caught.value).replace(str(folder / "uplift.toml"), "uplift.toml").splitlines()


def test_nothing_configured_is_fine(tmp_path: Path) -> None:
    found = config_file.load(start=tmp_path, environment={})
    assert (found.file, found.raw, found.origins) == (None, {}, {})
    assert found.values.settings.retry


def test_a_file_sets_models_parameters_limits_prices_and_programs(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
        models = ["openai:gpt-4o", "command:mine"]
        tools = ["Read"]
        retry = false
        params = {temperature = 0, system = "be brief"}
        limits = {rpm = 60, "openai:gpt-4o" = {max_in_flight = 3}}
        prices = {"command:mine" = {input = 1, output = 2.5}}
        commands = {mine = {argv = ["mine", "-"]}}
        """,
    )
    settings = found.values.settings
    assert found.values.models == ("openai:gpt-4o", "command:mine")
    assert settings.params == {"temperature": 0, "system": "be brief"}
    assert settings.default_limits == Limits(rpm=60)
    assert settings.limits == {"openai:gpt-4o": Limits(rpm=60, max_in_flight=3)}
    assert settings.prices == {"command:mine": Price(input=1, output=2.5)}
    assert settings.commands["mine"].argv == ("mine", "-")
    assert (settings.tools, settings.retry) == (("Read",), False)


def test_variables_win_over_the_file_and_flags_over_both(tmp_path: Path) -> None:
    text = 'judge_model = "mock"\nparams = {a = 1, b = 1, c = 1}\nlimits = {rpm = 10, tpm = 10, max_in_flight = 1}'
    found = loaded(
        tmp_path, text, UPLIFT_JUDGE_MODEL="sim", UPLIFT_PARAMS='{"b": 2, "c": 2}', UPLIFT_RPM="20"
    )
    settings = found.with_flags({"params": ["c=3"], "tpm": 30}).settings
    assert found.values.judge_model == "sim"
    assert settings.params == {"a": 1, "b": 2, "c": 3}
    assert settings.default_limits == Limits(rpm=20, tpm=30, max_in_flight=1)


def test_a_limit_given_by_flag_holds_for_every_model(tmp_path: Path) -> None:
    settings = loaded(tmp_path, '[limits."openai:m"]\nrpm = 600').with_flags({"rpm": 60}).settings
    assert settings.limits["openai:m"] == Limits(rpm=60)


def test_every_value_knows_where_it_came_from(tmp_path: Path) -> None:
    text = 'pass_k = 2\nmargin = 0.1\n[params]\na = 1\n[limits."openai:m"]\nrpm = 1'
    found = loaded(
        tmp_path, text, UPLIFT_PASS_K="3", UPLIFT_TPM="9", UPLIFT_MODELS="mock sim:latency=1,seed=2"
    )
    file = str(tmp_path / "uplift.toml")
    assert found.origins == {
        "pass_k": "UPLIFT_PASS_K",
        "margin": file,
        "params.a": file,
        'limits."openai:m"': file,
        "limits.tpm": "UPLIFT_TPM",
        "models": "UPLIFT_MODELS",
    }
    assert found.values.models == ("mock", "sim:latency=1,seed=2")


def test_the_nearest_file_is_found_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    above, repository = written(tmp_path, "pass_k = 9"), tmp_path / "repository"
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    (repository / ".git").mkdir()
    assert config_file.find(inner) is None
    assert config_file.find(tmp_path) == above
    expected = written(repository, "[tool.uplift]\npass_k = 2", "pyproject.toml")
    assert config_file.find(inner) == expected
    assert config_file.load(start=inner, environment={}).values.pass_k == 2
    assert config_file.find(inner) == expected
    nearer = written(repository / "a", "pass_k = 3")
    assert config_file.find(inner) == nearer


def test_a_pyproject_of_somebody_else_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    wanted = written(tmp_path, "pass_k = 2")
    written(tmp_path / "inner", "[tool.other]\nx = 1", "pyproject.toml")
    assert config_file.find(tmp_path / "inner") == wanted


def test_outside_a_repository_and_home_nobody_elses_folder_is_looked_at(tmp_path: Path) -> None:
    written(tmp_path, "pass_k = 9")
    (tmp_path / "mine").mkdir()
    assert config_file.find(tmp_path / "mine") is None


def test_the_search_ends_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    written(tmp_path, "pass_k = 9")
    (tmp_path / "home" / "work").mkdir(parents=True)
    assert config_file.find(tmp_path / "home" / "work") is None
    mine = written(tmp_path / "home", "pass_k = 2")
    assert config_file.find(tmp_path / "home" / "work") == mine


def test_a_variable_names_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "elsewhere", "pass_k = 4")
    assert config_file.load(start=tmp_path, environment={"UPLIFT_CONFIG": str(file)}).values.pass_k == 4


def test_paths_in_a_file_are_relative_to_the_file_and_in_variables_to_the_current_folder(
    tmp_path: Path,
) -> None:
    found = loaded(tmp_path, 'state_root = "state"', UPLIFT_BASELINE_CACHE_DIR="cache").raw
    assert found == {"state_root": str(tmp_path / "state"), "baseline_cache_dir": "cache"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modles = ['mock']", ["modles: unknown key; allowed: task_suite", "(did you mean models?)"]),
        ("pass_k = '3'", ['pass_k: is "3"; must be a whole number']),
        ("pass_k = 0", ["pass_k: is 0; must be at least 1"]),
        ("budget_usd = inf", ["budget_usd: is", "must be a finite number"]),
        ("gate = 'decison'", ["allowed: verdict, decision, regression (did you mean decision?)"]),
        ("gate_cost = '10'", ["gate_cost: '10' says not how much more it may cost; write it as in +10%"]),
        ("gate_cost = 10", ["gate_cost: is 10; must be text", "+10%"]),
        ("models = []", ["models: is []; must not be empty"]),
        (
            "models = ['opnai:x']",
            ["models[0]: unknown model 'opnai:x'; known kinds: ", "(did you mean openai?)"],
        ),
        ("[limits]\nrppm = 1", ["limits.rppm: unknown key", "(did you mean rpm?)"]),
        ("[limits.'openai:m']\nrpm = 0", ['limits."openai:m".rpm: is 0; must be above 0']),
        ("[limits.'opnai:m']\nrpm = 1", ['limits."opnai:m": unknown model']),
        ("[prices.m]\ninput = 1", ["prices.m.output: is missing"]),
        ("[prices.m]\ninput = 1\noutput = true", ["prices.m.output: is true; must be a number"]),
        ("[commands.a]\nargv = 'x y'", ['commands.a.argv: is "x y"; must be a list']),
        (
            "[commands.a]\nargv = ['x']\noutput = 'json'",
            ["commands.a: command a: output is 'json', so text_path"],
        ),
        (
            "[commands.a]\nargv = ['x']\nenvironment = ['A=b']",
            ["commands.a.environment[0]", "without a value"],
        ),
        ("[params]\nstream = true", ["params.stream: is no parameter", "one call with one answer"]),
        ("x = = 1", ["not valid TOML", "line 1, column 5"]),
    ],
)
def test_a_mistake_is_told_with_file_key_and_remedy(tmp_path: Path, text: str, words: list[str]) -> None:
    (said,) = mistakes(tmp_path, text)
    assert said.startswith("uplift.toml: ")
    assert all(word in said for word in words), said


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    assert len(mistakes(tmp_path, "pass_k = 0\nmargin = 2\nsandbox = 'on'")) == 3


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("UPLIFT_PASS_K", "x", 'UPLIFT_PASS_K: is "x"; must be a whole number'),
        ("UPLIFT_LIMITS", '{"mock": {"rpmm": 1}}', "UPLIFT_LIMITS: mock.rpmm: unknown key"),
        ("UPLIFT_PRICES", "{", 'UPLIFT_PRICES: is "{"; must be a table'),
        ("UPLIFT_RPM", "-1", "UPLIFT_RPM: is -1; must be above 0"),
    ],
)
def test_a_mistake_in_a_variable_names_the_variable(
    tmp_path: Path, variable: str, value: str, words: str
) -> None:
    (said,) = mistakes(tmp_path, "", **{variable: value})
    assert said.startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "[params]\napi_key = 'hunter2hunter2'",
        "[params.extra_headers]\nAuthorization = 'Bearer x'",
        "[params]\nx = 'sk-ant-0123456789abcdef'",
        "[params]\nbase_url = 'https://me:hunter2@proxy.internal'",
        "[commands.a]\nargv = ['x', '--key=sk-0123456789abcdef']",
        "broker = 'redis://:hunter2@queue.internal'",
    ],
)
def test_a_secret_is_refused_and_never_repeated(tmp_path: Path, text: str) -> None:
    said = "\n".join(mistakes(tmp_path, text))
    assert "secret" in said or "password" in said
    assert "hunter2" not in said
    assert "0123456789" not in said


def test_what_the_environment_calls_a_secret_is_refused_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", "correct horse battery")
    assert "params.x: looks like a secret" in mistakes(tmp_path, "[params]\nx = 'a correct horse battery'")[0]


def test_parameters_that_only_sound_like_secrets_are_not_refused(tmp_path: Path) -> None:
    text = "[params]\nmax_tokens = 5\nprompt_cache_key = 'suite-1'\nlogit_bias = {token = 1}"
    assert loaded(tmp_path, text).values.params["prompt_cache_key"] == "suite-1"


def test_a_brokers_password_may_come_from_the_environment(tmp_path: Path) -> None:
    url = "redis://:hunter2@queue.internal"
    assert loaded(tmp_path, "", UPLIFT_BROKER=url).raw == {"broker": url}


def test_unknown_variables_are_noticed_with_what_was_meant(tmp_path: Path) -> None:
    found = config_file.unknown_variables(
        {"UPLIFT_MODLES": "x", "UPLIFT_RPM": "1", "UPLIFT_CLAUDE": "c", "HOME": "/"}
    )
    assert found == {"UPLIFT_MODLES": " (did you mean UPLIFT_MODELS?)"}


def test_every_variable_that_the_docs_or_the_code_name_means_something() -> None:
    root = Path(__file__).parent.parent
    pages = [root / "README.md", root / "compose.yaml", *(root / "docs").glob("*.md")]
    sources = [path for name in PACKAGES for path in (root / name).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in (*pages, *sources))
    named = set(re.findall(r"\bUPLIFT_[A-Z_]*[A-Z]\b", text)) - {"UPLIFT_MODLES"}
    assert {"UPLIFT_METRICS_PORT", "UPLIFT_RPM", "UPLIFT_REDIS_PASSWORD"} <= named
    assert config_file.unknown_variables(dict.fromkeys(named, "x")) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("temperature=0", 0),
        ("temperature=0.5", 0.5),
        ("logprobs=false", False),
        ("stop=null", None),
        ('stop=["a", "b"]', ["a", "b"]),
        ("system=Be brief.", "Be brief."),
        ("system=a=b", "a=b"),
        ("system=", ""),
        ("x=NaN", "NaN"),
        ('x="1"', "1"),
    ],
)
def test_a_parameter_is_json_where_it_can_be_and_text_otherwise(text: str, value: Any) -> None:
    assert params_of([text]) == {text.partition("=")[0]: value}


@pytest.mark.parametrize(
    "texts", [["temperature"], ["=1"], [" a=1"], ["a=1", "a=2"], [f"x={KEY}"], ["api_key=a"]]
)
def test_a_parameter_that_makes_no_sense_or_is_a_secret_is_refused(texts: list[str]) -> None:
    with pytest.raises(InvalidOption) as caught:
        params_of(texts)
    assert KEY not in str(caught.value)


def test_tools_are_separated_by_commas_outside_parentheses() -> None:
    assert parse_tools("Read, Bash(ls, git *),Edit") == ("Read", "Bash(ls, git *)", "Edit")
    assert parse_tools("") == ()


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidOption, match="--max-in-flight is 0; must be at least 1"):
        Config().with_flags({"max_in_flight": 0})


def test_commands_use_the_config_and_flags_win_over_it(tmp_path: Path) -> None:
    suite = a_suite(tmp_path / "suite")
    file = written(tmp_path, 'models = ["sim:cost=0.5"]\npass_k = 3\nstate_root = "there"')
    words = [word for word in standalone(suite, "--dry-run", "--json") if "state" not in str(word)]
    planned = uplift(*words, "--config", file, cwd=tmp_path).line
    assert (planned["models"], planned["attempts_per_task"]) == ("sim:cost=0.5", 3)
    assert planned["cost_usd_at_most"] == 4 * 2 * 3 * 0.5
    planned = uplift(*words, "--pass-k", "1", cwd=tmp_path, env={"UPLIFT_PASS_K": "2"}).line
    assert planned["attempts_per_task"] == 1
    assert "mock" in uplift(*words, "--mock", cwd=tmp_path).line["models"]
    assert str(tmp_path / "there") in uplift("runs", cwd=tmp_path).err


def test_a_broken_config_is_one_message_and_exit_code_two(tmp_path: Path) -> None:
    written(tmp_path, "pass_k = 0")
    ended = uplift("runs", cwd=tmp_path)
    assert (ended.code, ended.err) == (
        2,
        f"uplift: {tmp_path}/uplift.toml: pass_k: is 0; must be at least 1\n",
    )


def test_a_budget_is_refused_where_a_price_is_unknown_and_the_remedy_works(tmp_path: Path) -> None:
    words = standalone(
        a_suite(tmp_path), "--model", "openai:unheard-of", "--budget-usd", "1", "--dry-run", "--json"
    )
    ended = uplift(*words, cwd=tmp_path)
    assert ended.code == 2
    assert (
        'the price of openai:unheard-of, which is unknown; give it in uplift.toml as [prices."openai'
        in ended.err
    )
    written(tmp_path, '[prices."openai:unheard-of"]\ninput = 1\noutput = 10\n[params]\nmax_tokens = 100')
    planned = uplift(*words, cwd=tmp_path).line
    # Four tasks and two arms; answers of 100 tokens cost 0.001 each, prompts a little.
    assert planned["cost_usd_at_most"] == pytest.approx(8 * 0.001, rel=0.05)


def test_a_dry_run_tells_the_most_that_a_run_may_cost_and_what_is_likely(tmp_path: Path) -> None:
    written(tmp_path, '[prices."openai:m"]\ninput = 3\noutput = 15')
    words = standalone(a_suite(tmp_path), "--model", "openai:m", "--dry-run")
    planned = uplift(*words, "--json", cwd=tmp_path).line
    # Eight calls; 15 USD a million tokens make 0.12288 for 8192 of them and 0.0045 for 300; the prompts add a little.
    assert planned["cost_usd_at_most"] == pytest.approx(8 * 0.12288, rel=0.001)
    assert planned["cost_usd_likely"] == pytest.approx(8 * 0.0045, rel=0.02)
    assert planned["assumed"].endswith("every answer has 8192 tokens at most, and 300 likely")
    short = uplift(*words, "--json", "--param", "max_tokens=200", cwd=tmp_path).line
    assert short["cost_usd_likely"] == short["cost_usd_at_most"]
    assert "cost usd at most" in uplift(*words, cwd=tmp_path).out


def test_nobody_foresees_what_an_agent_costs(tmp_path: Path) -> None:
    words = standalone(a_suite(tmp_path), "--model", "claude-code:claude-sonnet-4-5", "--dry-run", "--json")
    planned = uplift(*words, cwd=tmp_path).line
    assert (planned["cost_usd_at_most"], planned["cost_usd_likely"]) == (None, None)
    assert "turns" in planned["assumed"]


@pytest.mark.parametrize(
    ("param", "remedy"),
    [
        ("model=cheap", "--model"),
        ('messages=[{"role": "user", "content": "x"}]', "the task's prompt"),
        ("prompt=x", "the task's prompt"),
        ("input=x", "the task's prompt"),
        ("n=5", "--pass-k"),
        ("stream=true", "one call with one answer"),
    ],
)
def test_a_parameter_that_would_change_what_is_asked_is_refused(
    tmp_path: Path, param: str, remedy: str
) -> None:
    words = standalone(a_suite(tmp_path), "--model", "openai:m", "--param", param, "--dry-run")
    ended = uplift(*words, cwd=tmp_path)
    assert ended.code == 2
    (line,) = ended.err.strip().splitlines()
    assert f"--param {param.partition('=')[0]} is no parameter" in line
    assert remedy in line


def test_an_unknown_price_is_an_unknown_estimate(tmp_path: Path) -> None:
    words = standalone(a_suite(tmp_path), "--model", "openai:unheard-of", "--dry-run", "--json")
    assert uplift(*words, cwd=tmp_path).line["cost_usd_at_most"] is None


def test_the_default_agent_needs_a_name_for_a_budget(tmp_path: Path) -> None:
    ended = uplift(*standalone(a_suite(tmp_path), "--budget-usd", "1", "--dry-run"), cwd=tmp_path)
    assert ended.code == 2
    assert "claude-code:NAME" in ended.err


def test_the_example_in_the_documentation_is_valid_and_every_key_is_described(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    found = loaded(tmp_path, page.split("```toml\n")[1].split("```")[0])
    assert found.values.pass_k == 3
    keys = page.split("## Keys")[1].split("## Secrets")[0]
    assert [key for key in config_keys() if f"`{key}`" not in keys] == []


def test_a_config_that_names_suite_and_skill_makes_evaluate_a_whole_command(tmp_path: Path) -> None:
    a_suite(tmp_path / "evals")
    written(tmp_path, 'task_suite = "evals/suite.yaml"\nskill_path = "evals/skill"\nmodels = ["mock"]')
    (tmp_path / "inner").mkdir()
    planned = uplift(
        "evaluate", "--dry-run", "--json", "--config", "../uplift.toml", cwd=tmp_path / "inner"
    ).line
    assert (planned["arms"], planned["tasks"]) == ("baseline, candidate", 4)
    ended = uplift("evaluate", "--input", "nowhere.json", "--candidate-id", "all", cwd=tmp_path)
    assert (ended.code, "nowhere.json" in ended.err) == (2, True)  # the config's skill is no obstacle


def test_what_is_missing_is_said_with_flag_and_key(tmp_path: Path) -> None:
    a_suite(tmp_path)
    ended = uplift("evaluate", "--standalone", "--skill-path", "skill", cwd=tmp_path)
    assert (ended.code, "--task-suite is missing" in ended.err) == (2, True)
    ended = uplift("evaluate", "--task-suite", "suite.yaml", cwd=tmp_path)
    assert (ended.code, "name a skill's folder: uplift evaluate skill (" in ended.err) == (2, True)
    assert "or give a ranking: --input with --candidate-id" in ended.err


def test_what_names_a_single_run_is_no_key_of_a_config(tmp_path: Path) -> None:
    (said,) = mistakes(tmp_path, 'output = "here.json"')
    assert said.startswith("uplift.toml: output: unknown key; allowed: task_suite")


@pytest.mark.parametrize(
    ("text", "environment"), [('priority = "high"', {}), ("", {"UPLIFT_PRIORITY": "high"})]
)
def test_the_priority_can_be_configured(tmp_path: Path, text: str, environment: dict[str, str]) -> None:
    assert loaded(tmp_path, text, **environment).with_flags({}).priority == "high"
