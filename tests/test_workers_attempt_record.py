"""What is stored of an attempt can be read again."""

from workers.attempts.attempt import milliseconds


def test_a_clock_that_steps_back_gives_no_negative_duration():
    assert (milliseconds(-0.000_004), milliseconds(0.001_234_5)) == (0.0, 1.234)
