"""When a captured step lets its tensors go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from simdev.measure.capture import capture  # noqa: E402


class Chain(nn.Module):  # type: ignore[misc]
    """Adds a number four times over; ``hoards``: keeps every sum in a list until it returns."""

    def __init__(self, hoards: bool, in_place: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))
        self.hoards, self.in_place = hoards, in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.weight
        states = []
        for number in range(3):
            x = x.add_(number) if self.in_place else x + number
            if self.hoards:
                states.append(x)
        return x.sum()


def held(module: Chain) -> dict[str, str]:
    graph = capture(module, (torch.ones(4, 256),), lambda m, x: m(x)).graph
    return {name: op["name"] for op in graph["ops"] for name in op.get("releases", ())}


def test_what_python_refers_to_lives_until_it_lets_go() -> None:
    # The sum of all is the last op of the forward; the last state is what it reads.
    assert held(Chain(hoards=True)) == {"add_1": "sum", "add_2": "sum"}


def test_what_is_rebound_lives_as_long_as_it_is_read() -> None:
    assert held(Chain(hoards=False)) == {}


def test_what_is_written_in_place_is_one_memory() -> None:
    assert held(Chain(hoards=True, in_place=True)) == {}
