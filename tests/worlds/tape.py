"""Random choices read from bytes, from which programs, graphs and scenarios are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

TAPE = 320
Choice = TypeVar("Choice")


class Tape:
    """Choices read from random bytes: a single draw for a whole program is ten times faster than a
    draw for each number.

    A byte of zero, or the end of the tape, means the first choice, so that Hypothesis shrinks
    towards first choices.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def number(self, limit: int) -> int:
        """A number from 0 to below ``limit``."""
        self.position += 1
        return self.content[self.position - 1] % limit if self.position <= len(self.content) else 0

    def pick(self, *choices: Choice) -> Choice:
        return choices[self.number(len(choices))]

    def column(self, count: int, *choices: int) -> np.ndarray:
        return np.array([self.pick(*choices) for _ in range(count)], np.int64)

    def some(self, most: int, limit: int) -> list[int]:
        """Up to ``most`` distinct numbers under ``limit``, sorted."""
        return sorted({self.number(limit) for _ in range(self.number(most + 1))})


def drawn(build: Callable[..., Choice], *arguments: object) -> st.SearchStrategy[Choice]:
    """A Hypothesis strategy for the results of ``build(tape, *arguments)`` on random tapes."""
    return st.binary(min_size=TAPE, max_size=TAPE).map(
        lambda content: build(Tape(content), *arguments)
    )
