"""Intervals that hypothesis draws."""

from __future__ import annotations

from hypothesis import strategies as st

Interval = tuple[int, int]


@st.composite
def intervals(draw: st.DrawFn, size: int) -> Interval:
    start = draw(st.integers(0, size - 1))
    return start, draw(st.integers(start + 1, size))
