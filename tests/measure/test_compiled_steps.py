"""Steps made by torch.compile are refused by every door: they would be measured as eager ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simdev.ground.errors import InputError
from simdev.measure import import_program
from simdev.measure.capture import capture

torch = pytest.importorskip("torch")
from small_net import F, Net, batch  # noqa: E402

compiled = partial(torch.compile, backend="eager")


def cross_entropy(module: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(module(x), y)


def submodule() -> Any:
    net = Net()
    net.body = compiled(net.body)
    return net


def in_place() -> Any:
    net = Net()
    net.body[0].compile(backend="eager")
    return net


def forward_alone() -> Any:
    net = Net()
    net.conv.forward = compiled(net.conv.forward)
    return net


class Decorated(Net):
    @compiled
    def forward(self, x: Any) -> Any:
        return super().forward(x)


def squared_relu(x: Any) -> Any:
    return torch.relu(x).square()


class CallsFunction(Net):
    squared = staticmethod(compiled(squared_relu))

    def forward(self, x: Any) -> Any:
        return super().forward(self.squared(x))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: compiled(Net()), "the module is compiled"),
        (submodule, 'the module "body" is compiled'),
        (in_place, 'the module "body.0" is compiled'),
        (forward_alone, 'the module "conv" is compiled'),
        (Decorated, "the module is compiled"),
        (CallsFunction, "the function squared_relu is compiled"),
    ],
)
def test_what_is_compiled_is_named(make: Callable[[], Any], named: str) -> None:
    module = make()
    with pytest.raises(InputError, match=named) as refused:
        capture(module, batch(), cross_entropy)
    assert "import a trace of the compiled step" in str(refused.value)
    with pytest.raises(InputError, match=named):
        import_program(module.eval(), batch()[:1])


def test_a_compiled_loss_is_named() -> None:
    with pytest.raises(InputError, match="the function cross_entropy is compiled"):
        capture(Net(), batch(), compiled(cross_entropy))


def test_a_compiled_module_that_the_loss_holds_is_refused() -> None:
    head = compiled(torch.nn.Linear(10, 10))
    with pytest.raises(InputError, match='the module "Linear" is compiled'):
        capture(Net(), batch(), lambda m, x, y: F.cross_entropy(head(m(x)), y))


def test_what_is_compiled_but_never_called_is_no_reason(tmp_path: Path) -> None:
    net = Net()
    before = capture(net, batch(), cross_entropy).graph
    net.compile(disable=True)
    unused = compiled(squared_relu)
    assert capture(net, batch(), cross_entropy).graph == before
    assert unused is not squared_relu
    # The module behind the compiled one is measured as it is.
    assert capture(compiled(net)._orig_mod, batch(), cross_entropy).graph == before


def test_the_command_refuses_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from simdev.commands import main

    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def step(batch=2):\n"
        "    relu = torch.compile(torch.nn.ReLU(), backend='eager')\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(3, 3), relu)\n"
        "    return net, torch.zeros(batch, 3), lambda m, x: m(x).sum()\n"
    )
    out = tmp_path / "out"
    assert main(["profile", f"{tmp_path}/mine.py:step", "--seconds", "0.1", "-o", str(out)]) == 2
    assert 'the module "1" is compiled' in capsys.readouterr().err
    assert not out.exists()
