"""A run's attempts, judgments, criteria and tasks as CSV files, with summary.json beside them."""

from __future__ import annotations

from pathlib import Path

from aggregate import exports
from aggregate.report.material import Material
from aggregate.run_info import RunInfo


def write(material: Material, folder: Path) -> Path:
    """Write the tables of one candidate and its baseline into a folder."""
    artifact = material.artifact
    info = RunInfo.from_records(material.own_records()).model_copy(
        update={
            **{name: artifact[name] for name in ("run_id", "created_at", "skill_id", "pass_k", "status")},
            "models": tuple(artifact["models"]),
            "stop_early": "verdict" if artifact["curtailed"] else None,
        }
    )
    exports.write_exports(info, material.own_records(), folder)
    return folder
