"""Ctrl-C: the first asks to stop, the second ends the command, and neither prints into what is being printed."""

import os
import signal

import pytest

from producer.runs.evaluate import stopper


def test_the_first_signal_is_told_where_somebody_looks_and_once():
    said = []
    with stopper(said.append, "uplift resume RUN") as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert said == []  # a line may be on its way to the terminal at this very moment
        assert stop()
        assert stop()
    assert len(said) == 1
    assert said[0].endswith("Go on later with: uplift resume RUN")


def test_the_second_signal_ends_the_command():
    with stopper(lambda text: None, "uplift resume RUN"):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
