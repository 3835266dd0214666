"""Every number of a run as a plain function: the public names of `aggregate.formulas`.

Missing is NaN, never 0.
"""

# ruff: noqa: F403 - this module only hands names on

from __future__ import annotations

from aggregate.formulas.agreement import *
from aggregate.formulas.consistency import *
from aggregate.formulas.intervals import *
from aggregate.formulas.power import *
from aggregate.formulas.rates import *
from aggregate.formulas.significance import *
