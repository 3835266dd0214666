"""What our processes do without, because most of them live for seconds.

Nearly all that they allocate is either freed by counting references or stays to the end: searching it for cycles
after every few hundred objects is a tenth of a short command's time, and once more at the end a tenth. And nothing
here multiplies matrices, while the threads that numpy and scipy start for it cost a quarter of a second.
"""

from __future__ import annotations

import atexit
import gc
import os

_OBJECTS = 50_000


def be_thrifty() -> None:
    """Call this first in a process of ours."""
    gc.set_threshold(_OBJECTS, 20, 100)
    atexit.register(gc.freeze)  # what is frozen is not searched when the interpreter ends
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
