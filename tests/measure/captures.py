"""Small training steps to capture and measure; tests check shapes and keys, never times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from simdev.measure import steps  # noqa: E402
from simdev.measure.capture import Capture, capture  # noqa: E402
from simdev.measure.operators import Conditions  # noqa: E402
from simdev.measure.steps import Measured, measure_together  # noqa: E402
from simdev.measure.torch_models.classifiers import mlp  # noqa: E402
from simdev.nouns.graph import Graph, Op, Tensor  # noqa: E402

Step = tuple[nn.Module, tuple[Any, ...], Callable[..., Any]]


def conv_net() -> Step:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
    )
    return (
        module,
        (torch.randn(2, 3, 8, 8), torch.randint(5, (2,))),
        lambda m, x, y: F.cross_entropy(m(x), y),
    )


class TwoSteps(nn.Module):
    """One LSTM cell, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 5)

    def forward(self, x: Any) -> Any:
        state = self.cell(x)
        return self.cell(x, state)[0]


def lstm() -> Step:
    return TwoSteps(), (torch.randn(3, 6),), lambda m, x: m(x).square().sum()


STEPS = [mlp, conv_net, lstm]


def graph_of(captured: Capture) -> Graph:
    ops = [
        {
            **op,
            "inputs": tuple(op.get("inputs", ())),
            "outputs": tuple(
                Tensor(t["bytes"], tuple(t["shape"]), t["dtype"]) for t in op["outputs"]
            ),
        }
        for op in captured.graph["ops"]
    ]
    return Graph(captured.graph["name"], tuple(Op(**op) for op in ops))


def ops_of(captured: Capture, kind: str) -> list[dict[str, Any]]:
    return [op for op in captured.graph["ops"] if op["kind"] == kind]


def measured(step: Step, optimizer: str = "adam") -> tuple[Capture, Measured]:
    captured = capture(*step, optimizer=optimizer)
    whole = steps.Step(captured, *step, optimizer)
    return captured, measure_together([whole], Conditions("cpu", "test-1core", 0.5))
