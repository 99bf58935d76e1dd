"""A datasheet for tests: half of 100 TFLOP/s, three quarters of 1 TB/s, launches of 1 us."""

from fractions import Fraction

from simdev.costs import DeviceSpec, Efficiency

SPEC = DeviceSpec(
    "gpu", {"bfloat16": Fraction(10**14)}, Fraction(10**12), launch=Fraction(1, 10**6),
    efficiency={"default": Efficiency(Fraction(1, 2), Fraction(3, 4))},
)  # fmt: skip
