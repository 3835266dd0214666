"""Disguises a worker, before anything else is loaded: another clock, a name that others have, another version."""

import os

if os.environ.get("CHAOS_CLOCK"):
    import time

    _real, _ahead = time.time, float(os.environ["CHAOS_CLOCK"])
    time.time = lambda: _real() + _ahead

if os.environ.get("CHAOS_NAMESAKE"):
    import socket

    socket.gethostname = lambda: "namesake"
    os.getpid = lambda: 7

if os.environ.get("CHAOS_VERSION"):
    from typing import Literal

    from workers.store import messages

    class Manifest(messages.Manifest):
        """One that knows another format, and therefore can read nothing of ours."""

        format_version: Literal[99] = 99

    messages.Manifest = Manifest
