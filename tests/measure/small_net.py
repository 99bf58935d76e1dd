"""A net with a convolution, a norm and a body, its batch and its loss."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(8 * 16, 16),
            torch.nn.ReLU(),
            torch.nn.Dropout(),
            torch.nn.Linear(16, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


class Loss(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(
        10, (4,), generator=generator
    )
