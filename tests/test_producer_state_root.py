"""Names: whatever a run or candidate is called, its files stay where they belong and apart from others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.state_root import InvalidId, check_run_id, file_name

AWKWARD = st.text() | st.text(alphabet="./\\~-_aA:\x00\n \ud800é", max_size=6)


@pytest.mark.parametrize("text", ["run-2026.01_a", "7", "a" * 128])
def test_a_safe_id_is_its_own_file_name(text: str) -> None:
    assert file_name(text) == text
    assert check_run_id(text) == text


@pytest.mark.parametrize(
    "text", ["../../x", "/etc/passwd", "..", ".", "", "a/b", "é", "a" * 129, ".hidden", "a\n"]
)
def test_an_unsafe_id_is_refused_as_a_run_id_in_one_line(text: str) -> None:
    with pytest.raises(InvalidId, match=r"run id .* is not valid; use letters, digits") as raised:
        check_run_id(text)
    assert "\n" not in str(raised.value)


@given(AWKWARD)
def test_no_id_leaves_its_folder(text: str) -> None:
    name = file_name(text)

    assert Path("/root", name).parent == Path("/root")
    assert 0 < len(name) <= 128
    assert name.isascii()
    assert not name.startswith((".", "-", "~"))


@given(st.lists(AWKWARD, unique=True))
def test_different_ids_have_different_names_even_if_one_is_anothers_name(ids: list[str]) -> None:
    every = {*ids, *map(file_name, ids)}
    named = {file_name(text) for text in every}

    assert len(named) == len(every)
