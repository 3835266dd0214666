"""How our processes look for garbage: seldom, and not at all on their way out.

Nearly all that they allocate is either freed by counting references or stays to the end. Searching it for cycles
after every few hundred objects is a tenth of a short command's time, and once more at the end a tenth.
"""

from __future__ import annotations

import atexit
import gc

_OBJECTS = 50_000


def search_seldom() -> None:
    """Call this first in a process of ours."""
    gc.set_threshold(_OBJECTS, 20, 100)
    atexit.register(gc.freeze)  # what is frozen is not searched when the interpreter ends
