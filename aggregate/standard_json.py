"""Write numbers as standard JSON: what is missing or infinite becomes null, and keys keep their order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def clean(value: Any) -> Any:
    """The value in JSON's own types; NaN and infinities become None, lone surrogates a question mark."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return clean(value.item())
    if isinstance(value, Mapping):
        return {str(clean(key)): clean(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return [clean(entry) for entry in value.tolist()]
    return [clean(entry) for entry in value]


def rounded(value: float | None, places: int = 4) -> float | None:
    """The number rounded, and None where it is missing or infinite; never minus zero."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), places) + 0.0


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Standard JSON text of a cleaned value."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)
