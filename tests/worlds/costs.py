"""Datasheets of devices of the kind ``gpu``, and the cost model of one."""

from fractions import Fraction

from simdev.costs import CostModel, DeviceSpec, Efficiency

SPEC = DeviceSpec(
    "gpu", {"bfloat16": Fraction(10**14)}, Fraction(10**12), launch=Fraction(1, 10**6),
    efficiency={"default": Efficiency(Fraction(1, 2), Fraction(3, 4))},
)  # fmt: skip
"""Half of 100 TFLOP/s, three quarters of 1 TB/s, launches of 1 us."""

COSTS = CostModel(specs=(DeviceSpec("gpu", {"float32": Fraction(10**12)}, Fraction(10**11)),))
"""All of 1 TFLOP/s and of 100 GB/s, launches of no time."""
