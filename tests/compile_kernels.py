"""Compiles every kernel of the package into the cache on disk, for the tests to come.

    python tests/compile_kernels.py

Left to the tests, processes side by side would compile the same kernels twice.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

from numba import float64, int64
from numba.core.dispatcher import Dispatcher

from simdev.ground.jit import KERNELS

PACKAGES = [f"simdev.{name.replace('/', '.')}" for name in KERNELS if not name.endswith(".py")]


def kernels() -> list[Dispatcher]:
    """Each from the module that defines it."""
    modules = [
        import_module(module.name)
        for package in PACKAGES
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}.")
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Dispatcher) and value.__module__ == module.__name__
    ]


def compile_into_cache(kernel: Dispatcher) -> None:
    """Compile for the types of its calls: numbers and columns of them as its annotations say; what
    is a named tuple there is a column of addresses.
    """
    types = {"int": int64, "Floats": float64[::1]}
    parameters = inspect.signature(kernel.py_func).parameters.values()
    kernel.compile(tuple(types.get(one.annotation, int64[::1]) for one in parameters))


if __name__ == "__main__":
    for one in kernels():
        compile_into_cache(one)
