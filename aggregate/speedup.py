"""How much faster a candidate's code runs than the original: the public names of `aggregate.formulas.speedups`."""

from __future__ import annotations
