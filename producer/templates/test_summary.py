"""An example of a pytest judge: the answer is a file whose path is in AI_OUTPUT_FILE."""

import os
from pathlib import Path


def answer() -> str:
    return Path(os.environ["AI_OUTPUT_FILE"]).read_text(encoding="utf-8")


def test_it_holds_the_total() -> None:
    assert "7" in answer()


def test_it_is_one_sentence() -> None:
    assert answer().strip().count(".") <= 1
