"""How the judges of a run did: what they cost, how often they gave no score, whether panels agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from aggregate.stats import judge_bias, krippendorff_alpha


def block(judgments: pd.DataFrame, attempts: pd.DataFrame) -> dict[str, Any] | None:
    """Judges by type or model with their cost; agreement and bias where attempts had several."""
    if judgments.empty:
        return None
    named = judgments.assign(name=judgments["judge_model"].fillna(judgments["judge"]))
    panels = attempts[attempts["panel_size"] > 0]
    return {
        "judges": {str(name): _judge(part) for name, part in named.groupby("name", sort=True)},
        "panel_sizes": {
            str(size): int(count) for size, count in panels["panel_size"].value_counts().sort_index().items()
        },
        "n_missing": int(judgments["score"].isna().sum()),
        "n_saw_cut_text": int(judgments["saw_cut_text"].sum()),
        "judge_cost": _sum(judgments["cost_usd"]),
        "agreement": _agreement(_shared(named, attempts["panel_size"].to_numpy())),
    }


def _judge(part: pd.DataFrame) -> dict[str, Any]:
    return {
        "n": len(part),
        "n_scored": int(part["score"].count()),
        "mean_score": float(part["score"].mean()),
        "mean_impl_rate": float(part["judge_impl_rate"].mean()),
        "cost": _sum(part["cost_usd"]),
        "input_tokens": _sum(part["input_tokens"]),
        "output_tokens": _sum(part["output_tokens"]),
    }


def _shared(named: pd.DataFrame, sizes: np.ndarray[Any, Any]) -> pd.DataFrame:
    """The judgments of attempts that several judges saw, with the number of their attempt as `unit`.

    Judgments stand in the order of their attempts, so many for each as its panel has judges.
    """
    unit = np.repeat(np.arange(len(sizes)), sizes)
    return named.assign(unit=unit)[np.repeat(sizes, sizes) >= 2]


def _agreement(shared: pd.DataFrame) -> dict[str, Any] | None:
    """Krippendorff's alpha over the attempts that several judges saw; each judge's lean against others."""
    if shared.empty:
        return None
    # Two members of one model are two judges; their number tells them apart.
    several = shared.groupby(["unit", "name"], sort=False).cumcount() + 1
    told = shared.assign(several=several)
    scores, passes = (
        told.pivot(index=["name", "several"], columns="unit", values=column).sort_index()
        for column in ("score", "passed")
    )
    names = [name if number == 1 else f"{name} #{number}" for name, number in scores.index]
    return {
        "n": scores.shape[1],
        "alpha_scores": krippendorff_alpha(scores.to_numpy(), level="interval"),
        "alpha_passes": krippendorff_alpha(passes.to_numpy(), level="nominal"),
        "bias": dict(zip(names, judge_bias(scores.to_numpy()), strict=True)),
    }


def _sum(values: pd.Series[float]) -> float:
    known = values.dropna()
    return float(known.sum()) if len(known) else np.nan
