"""`uplift evaluate`: run a suite with the candidate skill and with the baseline, and say which is better."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from producer.commands.flags import (
    DEFAULT_STATE_ROOT,
    Broker,
    ConfigFile,
    InFlight,
    Insecure,
    Quiet,
    StateRoot,
)

if TYPE_CHECKING:
    from producer.plan import Plan


def evaluate(
    context: typer.Context,
    task_suite: Annotated[
        Path, typer.Option("--task-suite", help="The suite: a YAML file of tasks and judges.")
    ],
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Evaluate the skill at --skill-path, without a ranking.")
    ] = False,
    skill_path: Annotated[
        Path | None, typer.Option("--skill-path", help="The candidate: a skill folder or a SKILL.md.")
    ] = None,
    baseline_path: Annotated[
        Path | None,
        typer.Option("--baseline-path", help="The baseline skill. [default: the bare model, with no skill]"),
    ] = None,
    baseline_artifact: Annotated[
        Path | None,
        typer.Option(
            "--baseline-artifact",
            help="A blessed baseline, as `uplift bless` writes it: compared with, not run.",
            metavar="FILE",
        ),
    ] = None,
    no_baseline: Annotated[
        bool, typer.Option("--no-baseline", help="Run the candidate alone; it passes at a rate of 0.5.")
    ] = False,
    ranking: Annotated[
        Path | None, typer.Option("--input", help="A ranking artifact (JSON) with candidates; pipeline mode.")
    ] = None,
    candidate_id: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate-id", metavar="ID", help="A candidate of the ranking, or `all`; may repeat."
        ),
    ] = None,
    state_root: StateRoot = DEFAULT_STATE_ROOT,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="SPEC",
            help="claude-code, anthropic:NAME, openai:NAME, command:NAME, mock, sim:KEY=VALUE,… or replay:FILE; "
            "may repeat. [default: claude-code]",
        ),
    ] = None,
    mock: Annotated[
        bool, typer.Option("--mock", help="Fixed replies, no model, no key: tries the wiring.")
    ] = False,
    judge_model: Annotated[
        str | None,
        typer.Option(
            "--judge-model", metavar="SPEC", help="Model for llm-rubric judges. [default: the run's model]"
        ),
    ] = None,
    pass_k: Annotated[
        int,
        typer.Option(
            "--pass-k", metavar="N", help="Attempts per task and arm; a task passes when one of them does."
        ),
    ] = 1,
    skill_mode: Annotated[
        str | None,
        typer.Option(
            "--skill-mode",
            metavar="MODE",
            help="prepend (the skill goes in front of the prompt) or mount (its folder is installed). "
            "[default: mount for agents, else prepend]",
        ),
    ] = None,
    sandbox: Annotated[
        str,
        typer.Option(
            "--sandbox",
            metavar="WHEN",
            help="Confine code that judges and agents run: auto (where it works), required or off.",
        ),
    ] = "auto",
    baseline_cache_dir: Annotated[
        Path | None, typer.Option("--baseline-cache-dir", help="Reuse baseline attempts for 7 days.")
    ] = None,
    eval_threshold: Annotated[
        float, typer.Option("--eval-threshold", help="Candidates ranked below this score are skipped.")
    ] = 6.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Where the artifact goes; a folder with several candidates. "
            "[default: <state-root>/evaluations/RUN.json]",
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            "--margin", metavar="SHARE", help="How much worse still counts as no worse; 0.05 is 5 points."
        ),
    ] = 0.05,
    gate: Annotated[
        str,
        typer.Option("--gate", metavar="WHAT", help="What the exit code follows: verdict or decision."),
    ] = "verdict",
    weak_baseline: Annotated[
        str,
        typer.Option(
            "--weak-baseline", metavar="WHAT", help="error or warn, when the baseline passes less than 20 %."
        ),
    ] = "error",
    stop_early: Annotated[
        str | None,
        typer.Option(
            "--stop-early",
            metavar="WHEN",
            help="verdict (stop when it cannot change any more) or decision (look after each round of attempts; "
            "needs --pass-k 2 or more). [default: never]",
        ),
    ] = None,
    effect: Annotated[
        float,
        typer.Option(
            "--effect", metavar="SHARE", help="The difference that --stop-early decision is to find."
        ),
    ] = 0.10,
    priority: Annotated[
        str,
        typer.Option(
            "--priority",
            metavar="LEVEL",
            help="high, normal or low: whose batches a shared broker serves first.",
        ),
    ] = "normal",
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="KEY=VALUE",
            help="A parameter of the models, such as temperature=0 or max_tokens=2000; may repeat.",
        ),
    ] = None,
    rpm: Annotated[
        float | None, typer.Option("--rpm", help="Calls per minute to each model, over all workers together.")
    ] = None,
    tpm: Annotated[
        float | None, typer.Option("--tpm", help="Tokens per minute of each model, over all workers.")
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option("--max-in-flight", help="Calls at once to each model, over all workers.")
    ] = None,
    no_retry: Annotated[
        bool, typer.Option("--no-retry", help="Ask a busy or broken model once, not up to six times.")
    ] = False,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools", metavar="LIST", help="Tools that claude-code may use, between commas; empty for none."
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            "--budget-usd", metavar="SUM", help="Start no attempt that may go past this sum, in USD."
        ),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="ID", help="Only this task; may repeat.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only tasks with this tag; may repeat.")
    ] = None,
    tier: Annotated[
        list[str] | None, typer.Option("--tier", metavar="TIER", help="Only tasks of this tier; may repeat.")
    ] = None,
    broker: Broker = None,
    insecure: Insecure = False,
    in_flight: InFlight = None,
    config: ConfigFile = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit, print the run id and return; `uplift watch` follows it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan with calls and cost; run nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the whole artifact on standard output, not only the summary line."
        ),
    ] = False,
    run_id: Annotated[str | None, typer.Option("--run-id", hidden=True)] = None,
) -> None:
    """Run every task with the candidate skill and with the baseline, and compare.

    Prints one JSON line with pass rates, delta and verdict on standard output; progress and the result table go to
    standard error. Exit codes: 0 pass or skipped, 1 fail, 2 invalid input, 3 verdict error or infrastructure,
    130 interrupted (resume with `uplift resume RUN`).

    Examples:

    \b
      uplift evaluate --standalone --task-suite suite.yaml \\
        --skill-path ./skill --mock

    \b
      uplift evaluate --standalone --task-suite suite.yaml \\
        --skill-path ./skill --baseline-path ./old \\
        --model anthropic:claude-sonnet-4-5 --pass-k 5 --gate decision

    \b
      uplift evaluate --input ranking.json --candidate-id all \\
        --task-suite suite.yaml
    """
    from producer import plan as plans
    from producer.config import Config, limits_of, params_of, parse_tools
    from producer.names import check_run_id
    from producer.options import Options, one_of

    if mock and model:
        raise typer.BadParameter("--mock and --model exclude each other")
    found: Config = context.obj
    options = Options(
        task_suite=task_suite,
        state_root=state_root,
        standalone=standalone,
        skill_path=skill_path,
        baseline_path=baseline_path,
        baseline_artifact=baseline_artifact,
        no_baseline=no_baseline,
        ranking=ranking,
        candidate_ids=tuple(candidate_id or ()),
        models=("mock",) if mock else tuple(model or found.values.models or ("claude-code",)),
        judge_model=judge_model,
        pass_k=pass_k,
        skill_mode=one_of("--skill-mode", skill_mode, ("prepend", "mount", None)),
        sandbox=one_of("--sandbox", sandbox, ("auto", "required", "off")),
        baseline_cache_dir=baseline_cache_dir,
        eval_threshold=eval_threshold,
        output=output,
        margin=margin,
        gate=one_of("--gate", gate, ("verdict", "decision")),
        weak_baseline=one_of("--weak-baseline", weak_baseline, ("error", "warn")),
        stop_early=one_of("--stop-early", stop_early, ("verdict", "decision", None)),
        effect=effect,
        priority=one_of("--priority", priority, ("high", "normal", "low")),
        tasks=tuple(task or ()),
        tags=tuple(tag or ()),
        tiers=tuple(tier or ()),
        budget_usd=budget_usd,
        settings=found.model_settings(
            params=params_of(param or ()),
            limits=limits_of(rpm=rpm, tpm=tpm, max_in_flight=max_in_flight),
            tools=None if tools is None else parse_tools(tools),
            retry=False if no_retry else None,
        ),
    )
    if found.values.agents is not None:  # the private worker takes it from here
        os.environ["UPLIFT_AGENT_IN_FLIGHT"] = str(found.values.agents)
    plan = plans.make(options, run_id=check_run_id(run_id) if run_id else None)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    _run(plan, broker, insecure=insecure, in_flight=in_flight, detach=detach, quiet=quiet, as_json=as_json)


def _run(
    plan: Plan,
    broker: str | None,
    *,
    insecure: bool,
    in_flight: int | None,
    detach: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    from producer import display, evaluation
    from producer.evaluation import Surroundings
    from producer.places import Places
    from producer.results import report_and_exit
    from producer.session import broker_url, for_new_run

    places = Places(plan.options.state_root)
    url = broker_url(broker, insecure=insecure)
    where = Surroundings(places, url, display.choose(quiet=quiet), in_flight)
    if detach and plan.arms:
        if url is None:
            arguments = [word for word in sys.argv[1:] if word != "--detach"]
            evaluation.supervise([*arguments, "--quiet", "--run-id", plan.run_id], plan.run_id, places)
        else:
            reuse = evaluation.prepare(plan, where)
            with for_new_run(places, plan.run_id, url, in_flight=in_flight) as opened:
                evaluation.begin(plan, reuse, opened, where.display.say)
        typer.echo(plan.run_id)
        typer.echo(f"uplift: follow it with: {places.command('watch', plan.run_id)}", err=True)
        return
    artifacts = evaluation.evaluate(plan, where)
    report_and_exit(artifacts, places, gate=plan.options.gate, quiet=quiet, as_json=as_json)


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from producer.estimate import estimate

    facts: dict[str, Any] = estimate(plan)
    if as_json:
        import json

        typer.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<18} {'–' if value is None else value}")
