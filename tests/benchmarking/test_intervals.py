"""The counts of measured steps within intervals of draws, worked out by hand."""

import math

from benchmarks.coverage import Measured, line, measured_here


def test_steps_are_counted_beside_and_within_their_intervals():
    steps = [
        Measured("g", "below", 0.8, 0.9, 1.0, 1.1),
        Measured("g", "low", 0.9, 0.9, 1.0, 1.1),
        Measured("g", "middle", 1.0, 0.9, 1.0, 1.1),
        Measured("g", "above", 1.1**2, 0.9, 1.0, 1.1),
        Measured("g", "within", 1.05, 0.9, 1.0, 1.1),
    ]
    # Four of five are within reach of log(0.9) twice: the last is 0.8, at log(0.8) / log(0.9).
    assert math.log(0.8) / math.log(0.9) > 2
    assert line("g", steps) == ("g", "5", "60%", "20%", "20%", "10.0%", "x 2.0")


def test_an_interval_without_width_reaches_its_own_point_only():
    assert Measured("g", "exact", 1.0, 1.0, 1.0, 1.0).reach == 0
    assert Measured("g", "off", 1.1, 1.0, 1.0, 1.0).reach == math.inf


def test_the_first_measured_step_has_an_interval():
    step = next(measured_here(4))
    assert 0 < step.low <= step.middle <= step.high
    # A host's run may be 18 % slower, and then holds up a step that the device holds up.
    assert step.high < 1.3 * step.low
