"""An example of a pytest judge. Code of an answer belongs in `uplift_judge.run_python`, never in the tests' process."""

from uplift_judge import output


def test_it_holds_the_total() -> None:
    assert "7" in output()


def test_it_is_one_sentence() -> None:
    assert output().strip().count(".") <= 1
