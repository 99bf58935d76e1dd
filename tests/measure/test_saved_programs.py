"""A program that was saved has the graph of the one in memory, whose modules PyTorch tells."""

from __future__ import annotations

import io
from typing import Any

import pytest

from simdev.ground.errors import InputError
from simdev.measure import import_program

torch = pytest.importorskip("torch")
from small_net import F, Net, batch  # noqa: E402

nn = torch.nn


class Tied(nn.Module):
    """Weights that are shared, buffers of both kinds, parameters that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight
        self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.register_buffer("mask", torch.ones(6, 6).tril())
        self.register_buffer("scale", torch.ones(16), persistent=False)
        self.unused = nn.Linear(3, 3)

    def forward(self, ids: Any) -> Any:
        return self.head(self.body(self.table(ids) * self.scale, src_mask=self.mask))


class Twice(nn.Module):
    """Modules that are called twice, a constant, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.two = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Any, y: Any) -> Any:
        a = self.one(x)
        b = self.two(self.two(self.one(a + y)))
        return {"sum": a + b, "scaled": torch.tensor([1.0, 2.0]).sum() * b}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(8, 16, 2, batch_first=True), nn.GRU(16, 8)

    def forward(self, x: Any) -> Any:
        return self.gru(self.lstm(x)[0])


class Mutating(nn.Module):
    """Buffers that are written, operators of many outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.conv = nn.Conv1d(3, 3, 1)

    def forward(self, x: Any) -> Any:
        self.seen.add_(1)
        self.seen += x.mean((0, 2))
        a, b, c = x.chunk(3, 1)
        largest, where = x.max(1)
        whole = torch.cat([c, b, a], 1)
        return self.conv(x) * self.seen[None, :, None] + whole, largest, where, x.unbind(0)[0]


class Varying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        n, length, width = x.shape
        y = self.linear(x.reshape(n * length, width))
        return y.view(n, length // 2, 2 * width)[:, : length // 2 - 1]


class Optional(nn.Module):
    def forward(self, x: Any, k: int = 3, z: Any = None, *, scale: Any) -> Any:
        return x * k * scale["a"] if z is None else x + z


def saved(program: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file


def exported(module: Any, *args: Any, decomposed: bool = False, **more: Any) -> Any:
    program = torch.export.export(module, args, **more)
    return program.run_decompositions() if decomposed else program


EVEN = {0: torch.export.Dim("n", max=64), 1: 2 * torch.export.Dim("half", min=2, max=64)}
PROGRAMS = {
    "net": lambda: exported(Net(), batch()[0]),
    "net, decomposed": lambda: exported(Net(), batch()[0], decomposed=True),
    "tied": lambda: exported(Tied().eval(), torch.zeros(2, 6, dtype=torch.int64)),
    "tied, strict": lambda: exported(Tied(), torch.zeros(2, 6, dtype=torch.int64), strict=True),
    "twice": lambda: exported(Twice(), torch.zeros(2, 8), torch.zeros(2, 8)),
    "recurrent": lambda: exported(Recurrent(), torch.zeros(2, 5, 8)),
    "mutating": lambda: exported(Mutating(), torch.zeros(2, 3, 4)),
    "mutating, decomposed": lambda: exported(Mutating(), torch.zeros(2, 3, 4), decomposed=True),
    "varying": lambda: exported(Varying(), torch.zeros(4, 8, 6), dynamic_shapes={"x": EVEN}),
    "optional": lambda: exported(
        Optional(), torch.zeros(2, 3), 4, kwargs={"scale": {"a": torch.ones(3)}}
    ),
}


@pytest.mark.filterwarnings("ignore")  # of the export
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_file_has_the_graph_of_the_program(name: str) -> None:
    program = PROGRAMS[name]()
    found, expected = import_program(saved(program)), import_program(program)
    assert found.graph.ops == expected.graph.ops
    assert found.notes == expected.notes


def test_what_runs_in_a_mode_keeps_its_modules() -> None:
    class Modes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.a(x)
            with torch.no_grad():
                z = self.b(y).exp()
            with torch.autocast("cpu", torch.bfloat16):
                w = self.a(y)
            return F.mse_loss(y * z, w.float())

    module = Modes()
    x = torch.zeros(2, 4)
    graph = import_program(saved(exported(module, x)), optimizer="sgd-momentum").graph
    expected = import_program(module, (x,), optimizer="sgd-momentum").graph
    assert [op.name for op in graph.ops] == [op.name for op in expected.ops]
    # No gradient passes what ran without one.
    assert not [op for op in graph.ops if op.name.startswith(("grad/b", "update/b"))]


def test_a_program_takes_other_inputs_where_its_sizes_vary() -> None:
    file = saved(PROGRAMS["varying"]())
    graph = import_program(file, (torch.zeros(6, 16, 6),)).graph
    assert graph.ops[-1].outputs[0].shape == (6 * 16, 6)
    for wrong in (torch.zeros(6, 16, 5), torch.zeros(6, 16, 6).half(), torch.zeros(6, 16)):
        with pytest.raises(InputError, match="inputs: x: was exported with another shape"):
            import_program(file, (wrong,))
    with pytest.raises(InputError, match="inputs: must hold 1 tensors, got 2"):
        import_program(file, (wrong, wrong))


def test_weights_take_no_memory() -> None:
    """A program of 4 TiB of weights, none of which its file holds."""
    with torch.device("meta"):
        module = nn.Linear(2**20, 2**20)
    program = torch.export.export(module, (torch.zeros(1, 2**20, device="meta"),))
    graph = import_program(saved(program)).graph
    assert graph.ops[0].param_bytes == 2**42
