"""How much faster a candidate's code runs than the original: the public names of `aggregate.formulas.speedups`."""

# ruff: noqa: F403 - this module only hands names on

from __future__ import annotations

from aggregate.formulas.speedups import *
