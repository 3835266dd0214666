"""Every number of a run as a plain function: the public names of `aggregate.formulas`.

Missing is NaN, never 0.
"""

from __future__ import annotations
