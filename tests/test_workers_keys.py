"""Names on the server: a run's keys are its own and known by name, and a misspelt one is an error."""

import pytest
from submitting import RUN, a_stored_run

from workers.store.keys import Keys
from workers.store.run_store import Store


def test_a_misspelt_key_is_an_error():
    with pytest.raises(AttributeError):
        _ = Keys("r").recrods


def test_keys_of_two_runs_differ_in_the_run_only():
    assert Keys("r").records == "uplift:r:records"
    assert [name.replace(":r:", ":s:") for name in Keys("r").all()] == Keys("s").all()
    assert len(set(Keys("r").all())) == len(Keys("r").all()) > 10


def test_all_keys_that_creating_a_run_writes_are_known_by_name(client):
    a_stored_run(Store(client), 2)
    written = {name.decode() for name in client.keys(f"uplift:{RUN}:*")}
    assert written
    assert written <= set(Keys(RUN).all())
