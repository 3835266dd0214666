"""How a setting of a run is described, and the settings that a run's numbers depend on.

A setting is defined once, as a field in the class of whoever needs it: `ResultSettings` here, `WorkerSettings` and
`CallSettings` in `workers.store.messages`, and for the command line alone `producer.settings.run_settings.RunSettings`,
which inherits all of them. Flags, `uplift.toml`, variables, keywords, messages and tables in the docs follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from aggregate.formulas.verdict import Gate, WeakBaseline, largest_ratio

Panel = Literal[
    "What to compare", "Models", "How often", "Limits and money", "Gate", "Where it runs", "Serving", "Output"
]


@dataclass(frozen=True)
class Setting:
    """How people set a field: a flag under a heading of `--help`, a key of `uplift.toml`, a variable, a keyword.

    `flag`, `variable` and `keyword` are made from the field's name where they are not given. `default` says what
    happens without it, where the default value does not tell.
    """

    panel: Panel
    help: str
    metavar: str | None = None
    flag: str = ""
    default: str = ""
    variable: str = ""
    keyword: str = ""
    in_evaluate: bool = True
    in_config: bool = True


# What --stop-early was told in version 0.1.0.
OLD_STOP_EARLY = ("verdict", "decision")
HOW_TO_STOP_EARLY = (
    "it is on or off: it stops as `decision` did; `verdict`, which made every rate of a run missing, is gone"
)


def _no_old_word(value: Any) -> Any:
    if value in OLD_STOP_EARLY:
        raise ValueError(f"{value!r}: {HOW_TO_STOP_EARLY}")
    return value


class SharedSettings(BaseModel):
    """Settings that workers and numbers both depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    models: Annotated[
        tuple[str, ...],
        Field(min_length=1),
        Setting(
            "Models",
            "claude-code, anthropic:NAME, openai:NAME, command:NAME, mock, sim:KEY=VALUE,… or replay:FILE; "
            "may repeat.",
            metavar="SPEC",
            flag="--model",
            keyword="model",
        ),
    ] = ("claude-code",)
    pass_k: Annotated[
        int,
        Field(ge=1),
        Setting("How often", "Attempts per task and arm; a task passes when one of them does.", "N"),
    ] = 1
    stop_early: Annotated[
        bool,
        BeforeValidator(_no_old_word),
        Setting(
            "How often",
            "Look after each round of attempts, and stop when the answer is clear or out of reach; "
            "needs --pass-k 2 or more.",
        ),
    ] = False
    budget_usd: Annotated[
        float | None,
        Field(gt=0),
        Setting(
            "Limits and money",
            "Start no attempt that may go past this sum, in USD; a first one may, to learn what one costs.",
            "SUM",
        ),
    ] = None


def _share(text: str | None) -> str | None:
    if text is not None:
        largest_ratio(text)
    return text


class ResultSettings(SharedSettings):
    """Settings that change what is said of a run, not how it is made."""

    effect: Annotated[
        float,
        Field(gt=0, le=1),
        Setting("How often", "The difference that --stop-early is to find.", "SHARE"),
    ] = 0.10
    margin: Annotated[
        float,
        Field(ge=0, lt=1),
        Setting(
            "Gate",
            "How much worse still counts as no worse; 0.05 is 5 points, for which 43 tasks must tie. If a skill "
            "breaks a few tasks outright, and none of those is in the suite, no worse is wrong in up to 12 % of "
            "runs.",
            "SHARE",
        ),
    ] = 0.05
    gate: Annotated[
        Gate,
        Setting(
            "Gate",
            "What the exit code follows: verdict, decision, or regression: fail on harm to this suite only.",
            "WHAT",
        ),
    ] = "verdict"
    gate_cost: Annotated[
        str | None,
        AfterValidator(_share),
        Setting(
            "Gate",
            "How much more the candidate may cost, such as +10%: exit 1 when the interval of the cost ratio lies "
            "above that, 3 when there is no ratio.",
            "+SHARE%",
        ),
    ] = None
    weak_baseline: Annotated[
        WeakBaseline, Setting("Gate", "error or warn, when the baseline passes less than 20 %.", "WHAT")
    ] = "error"
    unloaded: Annotated[
        WeakBaseline,
        Setting("Gate", "error or warn, when no attempt loaded the mounted skill that should have.", "WHAT"),
    ] = "error"
    eval_threshold: Annotated[
        float, Setting("Gate", "Candidates ranked below this score are skipped.", "SCORE")
    ] = 6.0
