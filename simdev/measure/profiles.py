"""Makes a graph file and a profile file of the model of a given name.

``simdev profile`` calls it. It joins the parts: ``building`` finds the model, ``capture`` makes the
graph, ``steps`` measures, ``provenance`` describes the machine. Random shapes of op classes
(``--grid``) are drawn here too: a new class is a row of CLASSES.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import exp, log, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from ..execution.scenario import Scenario, load_scenario
from ..files.writing import parents, write_text
from ..ground.errors import InputError
from .building import Chosen, alike, built, precision_flags, resolve, sizes_of
from .capture import Capture, capture, captured
from .compare import write_scenario
from .kinds import dtype_name
from .operators import Conditions, Progress
from .provenance import describe, device_kind
from .record import Recorder, Scopes
from .steps import Measured, Step, joint, measure_alone, measure_together, profile_text
from .timers import require_device
from .torch_models import MODELS
from .torch_models.attention import attend
from .tracing import optimizer_named
from .transfers import measure_copies

# Random shapes of every op class. Profiles of them show how fast a device is at shapes between
# those of the shipped models.
# A point is a function of a few tensors. It is captured like a step, forward and backward, so that
# its ops have the kinds and attributes of ops in graphs. Shapes are drawn log-uniformly, within a
# limit on the work of a point.

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """The upper limits of a point: floating-point operations of its forward, and elements of its
    largest tensor.
    """

    flops: float
    elements: float


LIMITS = {"cpu": Limit(2e9, 2**23), "cuda": Limit(2e12, 2**28)}
POINTS = {"cpu": 24, "cuda": 150}
"""The default number of points of a class, by device."""
FLOAT8 = torch.float8_e4m3fn
LEAST_FLOAT8 = (8, 9)  # Ada, the first devices with products of float8
# Divides the number of points of a class whose points have a dozen ops each.
SHARE = {"attention": 3}


@dataclass(frozen=True, slots=True)
class Point:
    """A function of tensors of these shapes, of which the last ``parameters`` are parameters.
    ``flops`` is a rough count of the forward's operations.
    """

    function: Callable[..., Tensor]
    shapes: tuple[Shape, ...]
    parameters: int = 0
    flops: float = 0.0


def _whole(draw: random.Random, low: int, high: int) -> int:
    """A log-uniform integer; mostly a multiple of 8, like the widths of real layers."""
    value = round(exp(draw.uniform(log(low), log(high))))
    return value if value < 16 or draw.random() < 0.25 else value // 8 * 8


def gemm(draw: random.Random, number: int) -> Point:
    """A linear layer, with bias in two of three points."""
    m, n, k = _whole(draw, 4, 16384), _whole(draw, 8, 16384), _whole(draw, 8, 16384)
    bias = ((n,),) if number % 3 else ()
    return Point(F.linear, ((m, k), (n, k), *bias), 1 + len(bias), 2.0 * m * n * k)


def conv(draw: random.Random, number: int) -> Point:
    """A convolution over images; every sixth is depthwise."""
    kernel, stride = draw.choice((1, 1, 3, 3, 5, 7)), draw.choice((1, 1, 2))
    images, extent = _whole(draw, 1, 64), _whole(draw, 7, 224)
    channels, out = _whole(draw, 3, 1024), _whole(draw, 8, 1024)
    groups = channels if number % 6 == 5 else 1
    out = channels if groups > 1 else out

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, stride, kernel // 2, groups=groups)

    made = images * out * (extent / stride) ** 2
    shapes = ((images, channels, extent, extent), (out, channels // groups, kernel, kernel))
    return Point(function, shapes, 1, 2.0 * made * prod(shapes[1][1:]))


def attention(draw: random.Random, number: int) -> Point:
    """Attention: two of three points as separate products and softmax, the third fused."""
    batch, length = _whole(draw, 1, 64), _whole(draw, 16, 4096)
    heads, width = _whole(draw, 1, 32), draw.choice((32, 64, 64, 128))

    def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, heads, None, 0.0)

    flops = 4.0 * batch * heads * length**2 * width
    if number % 3:
        scores = batch * heads * length**2
        return Point(
            written,
            ((batch, length, heads * width),) * 3,
            0,
            flops if scores < 2**28 else float("inf"),
        )
    return Point(F.scaled_dot_product_attention, ((batch, heads, length, width),) * 3, 0, flops)


def norm(draw: random.Random, number: int) -> Point:
    """Layer norm and batch norm in turn."""
    if number % 2:
        rows, width = _whole(draw, 16, 65536), _whole(draw, 32, 8192)
        return Point(
            lambda x, w, b: F.layer_norm(x, (width,), w, b), ((rows, width), (width,), (width,)), 2
        )
    images, channels, extent = _whole(draw, 1, 128), _whole(draw, 8, 2048), _whole(draw, 4, 224)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # Running statistics are separate tensors without gradients, as in a step.
        mean, variance = (torch.zeros_like(weight, requires_grad=False) for _ in range(2))
        return F.batch_norm(x, mean, variance, weight, bias, training=True)

    return Point(function, ((images, channels, extent, extent), (channels,), (channels,)), 2)


def softmax(draw: random.Random, number: int) -> Point:
    """Softmax over the last axis and log-softmax in turn."""
    shape = (_whole(draw, 16, 65536), _whole(draw, 16, 65536))
    return Point(
        (lambda x: torch.log_softmax(x, -1)) if number % 2 else (lambda x: torch.softmax(x, -1)),
        (shape,),
    )


ELEMENTWISE: tuple[tuple[Callable[..., Tensor], int], ...] = (
    (torch.add, 2),
    (torch.mul, 2),
    (torch.relu, 1),
    (torch.sigmoid, 1),
    (torch.tanh, 1),
    (F.gelu, 1),
)
"""Elementwise functions, each with its number of operands."""


def elementwise(draw: random.Random, number: int) -> Point:
    """Sums, products and activations in turn; every other sum adds a row to each row."""
    function, operands = ELEMENTWISE[number % len(ELEMENTWISE)]
    shape = (_whole(draw, 1, 65536), _whole(draw, 16, 65536))
    shapes: tuple[Shape, ...] = (shape,) * operands
    if function is torch.add and number // len(ELEMENTWISE) % 2:
        shapes = (shape, shape[1:])
    return Point(function, shapes)


CLASSES: dict[str, Callable[[random.Random, int], Point]] = {
    "gemm": gemm,
    "conv": conv,
    "attention": attention,
    "norm": norm,
    "softmax": softmax,
    "elementwise": elementwise,
}


def points(name: str, limit: Limit, seed: int = 0) -> Iterator[Point]:
    """Random points of a class within a limit, without end; the same seed gives the same points.

    Raises InputError for an unknown class.
    """
    if name not in CLASSES:
        raise InputError(f'grid: must be among {", ".join(CLASSES)}, copies, got "{name}"')
    draw = random.Random(f"{name} {seed}")
    for number in count():
        point = CLASSES[name](draw, number)
        # Drawn again, not shrunk: the sizes stay log-uniform within the limit.
        while point.flops > limit.flops or max(map(prod, point.shapes)) > limit.elements:
            point = CLASSES[name](draw, number)
        yield point


def capture_grid(
    names: Sequence[str], each: int, device: str, dtype: str = "float32", seed: int = 0
) -> Capture:
    """A capture of ``each`` points of every class; the ops of different points are independent.

    Raises InputError for an unknown class, or a dtype that is no float of PyTorch.
    """
    number_type = _grid_dtype(names, device, dtype)
    captures = [
        capture_point(point, device, number_type)
        for name in names
        for point in islice(points(name, LIMITS[device], seed), -(-each // SHARE.get(name, 1)))
    ]
    return joint(captures)


def _grid_dtype(names: Sequence[str], device: str, dtype: str) -> torch.dtype:
    """The dtype of this name. Raises InputError where a grid cannot have this dtype."""
    number_type = getattr(torch, dtype, None)
    if not (isinstance(number_type, torch.dtype) and number_type.is_floating_point):
        raise InputError(f'dtype: must be a float such as float32 or bfloat16, got "{dtype}"')
    if number_type.itemsize > 1:
        return number_type
    if number_type != FLOAT8:
        raise InputError(f'dtype: of the floats of one byte float8_e4m3fn alone, got "{dtype}"')
    if list(names) != ["gemm"]:
        raise InputError(f"dtype: {dtype} is a dtype of products alone (--grid gemm)")
    if device != "cuda":
        raise InputError(f"dtype: products of {dtype} are measured on a CUDA device")
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_FLOAT8:
        raise InputError(
            f"dtype: products of {dtype} need a CUDA device of compute capability 8.9, this one's "
            f"is {capability[0]}.{capability[1]}"
        )
    return number_type


def capture_product(point: Point, device: str) -> Capture:
    """The float8 product of a point of ``gemm``, with one scale per tensor and a bfloat16 output.
    Its extents are rounded up to multiples of 16, which the library requires. Nothing is computed.
    """
    (m, k), (n, _) = ([-(-extent // 16) * 16 for extent in shape] for shape in point.shapes[:2])
    recorder = Recorder(Scopes({}))
    with FakeTensorMode():
        x = torch.empty(m, k, dtype=FLOAT8, device=device)
        weight = torch.empty(n, k, dtype=FLOAT8, device=device)
        scale_a, scale_b = (torch.ones((), device=device) for _ in range(2))
        leaves = {
            recorder.add_leaf("input", each): "operand" for each in (x, weight, scale_a, scale_b)
        }
        with recorder:
            torch._scaled_mm(
                x, weight.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16
            )
    return captured(recorder, leaves, "point")


def capture_point(point: Point, device: str, dtype: torch.dtype) -> Capture:
    """The forward and backward of a point; nothing is computed."""
    if dtype == FLOAT8:
        return capture_product(point, device)
    recorder = Recorder(Scopes({}))
    with FakeTensorMode():
        tensors = [
            torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
            for shape in point.shapes
        ]
        first = len(tensors) - point.parameters
        leaves = {
            recorder.add_leaf("parameter" if i >= first else "input", tensor): f"operand_{i}"
            for i, tensor in enumerate(tensors)
        }
        with recorder:
            value = point.function(*tensors)
            recorder.note_saved(value)
        # The gradient is an input, so that no op of a loss is among the point's rows.
        gradient = torch.empty_like(value)
        leaves[recorder.add_leaf("input", gradient)] = "gradient"
        recorder.phase = "backward"
        with recorder:
            torch.autograd.grad(value, tensors, gradient)
    return captured(recorder, leaves, "point")


GZIP_FROM = 10**6  # characters; profiles are kept in repositories


def model_names() -> list[tuple[str, int, str]]:
    """(name, batch on a CPU, optimizer) of the models that are ready to be measured."""
    return [
        (name, sizes_of(model.build, model.cpu)["batch"], model.optimizer)
        for name, model in MODELS.items()
    ]


def profile_model(
    name: str, device: str = "cpu", batch: int | None = None, **options: Any
) -> tuple[Path, Path]:
    """``profile_batches`` for a single batch size (None: the default); returns the paths of the
    graph and of the profile.

    Raises InputError.
    """
    graphs, profile = profile_batches(name, None if batch is None else [batch], device, **options)
    return graphs[0], profile


def profile_batches(
    name: str,
    batches: Sequence[int] | None = None,
    device: str = "cpu",
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    progress: Progress | None = None,
    optimizer: str | None = None,
    flush: bool | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: str | None = None,
) -> tuple[list[Path], Path]:
    """Captures and measures a model's training step for one or several batch sizes in one run;
    returns the paths of the graphs and of the one profile.

    ``name`` is one of ``model_names()`` or ``path/to/file.py:function``, a function that returns
    (module, inputs, loss), or (module, inputs) where the module returns its loss. ``device`` is
    "cpu" or "cuda", ``seconds`` about the time that measuring may take. ``batches`` and ``sizes``
    are arguments of the function (default: the papers' sizes; on a CPU, sizes that one core
    measures in minutes). ``progress`` is called as (done, total, kind of op). ``flush`` empties the
    caches before each sample (default: on CUDA only). ``precision`` is one of PRECISIONS (default:
    the model's code decides). Operators that several batches share are measured once. The header
    holds the first batch's step, and the steps of all batches under ``runs``. Files of over 1 MB
    are gzipped. Raises InputError.
    """
    conditions = _conditions(device, seconds, flush, progress)
    wanted = [None] if batches is None else list(dict.fromkeys(batches))
    chosen = [{**(sizes or {}), **({} if batch is None else {"batch": batch})} for batch in wanted]
    models = [resolve(name, device, each, optimizer, precision) for each in chosen]
    return _profiled(models, name, conditions, Path(out_dir))


def profile(
    module: nn.Module,
    inputs: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: str = "sgd-momentum",
    name: str = "model",
    seconds: float = 60.0,
    out_dir: str | os.PathLike[str] | None = None,
) -> Scenario:
    """Measures the training step of a module on the device where its parameters are. Returns a
    scenario of one such device with its host, ready for ``simdev.run``.

    ``inputs`` is a batch: a tensor, a tuple of them or a dict. ``loss(module, *inputs)`` gives the
    loss of the step (None: the module returns it itself). A copy of the module is trained
    meanwhile, for about ``seconds``. ``out_dir`` keeps the graph, the profile and the scenario as
    files (None: nothing is kept). Raises InputError.
    """
    device = next((p.device.type for p in module.parameters()), "cpu")
    model = Chosen(name, lambda: (copy.deepcopy(module), inputs, loss), {}, optimizer)
    optimizer_named(optimizer)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch if out_dir is None else out_dir)
        graphs, rows = _profiled([model], name, _conditions(device, seconds, None, None), folder)
        return load_scenario(write_scenario(rows, graphs[0]))


def _profiled(
    models: Sequence[Chosen], name: str, conditions: Conditions, folder: Path
) -> tuple[list[Path], Path]:
    """Measures models of one precision and writes their graphs and their profile into a folder."""
    with precision_flags(models[0].precision, conditions.device):
        steps = _steps(models, name, conditions)
        measured = measure_together(steps, conditions)
        described = describe(conditions.device)
    graphs, runs = [], []
    for model, step, (whole, host) in zip(models, steps, measured.wholes, strict=True):
        about = model.about() | described | {"flags": described["flags"] | step_flags(step)}
        path = folder / "graphs" / f"{step.captured.graph['name']}.json"
        graphs.append(write_packed(path, _graph_text(step.captured, about)))
        run = {"graph": f"graphs/{graphs[-1].name}", **model.about(), "step": whole, "host": host}
        runs.append(run)
        if len(runs) == 1:
            first = about | {"graph": run["graph"]}
    several = {"runs": runs} if len(runs) > 1 else {}
    text = profile_text(measured, first | several)
    return graphs, write_packed(folder / f"{models[0].file_title}.{conditions.kind}.jsonl", text)


def _steps(models: Sequence[Chosen], name: str, conditions: Conditions) -> list[Step]:
    """The captured steps of a model in several sizes. Steps whose parameters have equal shapes
    share them.
    """
    steps: list[Step] = []
    for model in models:
        # Parameters and inputs have the same values in every run: some kernels branch on them.
        torch.manual_seed(0)
        module, inputs, loss = built(model, name, conditions.device)
        if steps and alike(module, steps[0].module):
            module = steps[0].module
        conditions.tell("capture")
        # On a GPU PyTorch dispatches other operators, so its graph is a separate file.
        suffix = "" if conditions.device == "cpu" else f"-{conditions.device}"
        title = model.graph_name + suffix
        step = capture(module, inputs, loss, model.optimizer, title, real=True)
        steps.append(Step(step, module, inputs, loss, model.optimizer))
    return steps


def step_flags(step: Step) -> dict[str, Any]:
    """The dtypes in which the step computes: of its parameters, and of autocast."""
    dtypes = dict.fromkeys(dtype_name(p.dtype) for p in step.module.parameters())
    return {"parameters": list(dtypes), "autocast": step.captured.autocast}


def profile_grid(
    classes: Sequence[str],
    device: str = "cpu",
    seconds: float = 240.0,
    out_dir: str | os.PathLike[str] = "profiles",
    points: int | None = None,
    dtype: str = "float32",
    flush: bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """Measures random shapes of op classes, and returns the path of the profile.

    ``classes`` are names of CLASSES (empty: all), or just ``copies``, a separate grid over sizes.
    ``points`` is the number of points of each class (default: POINTS). Raises InputError.
    """
    conditions = _conditions(device, seconds, flush, progress)
    names = list(dict.fromkeys(classes)) or list(CLASSES)
    about: dict[str, Any] = {"grid": names, **describe(device)}
    if names == ["copies"]:
        rows, method, noise = measure_copies(device, conditions.kind, progress=progress)
        measured = Measured(rows, noise, {}, method, [])
    else:
        each = POINTS[device] if points is None else points
        if each < 1:
            raise InputError(f"points: must be at least 1, got {each}")
        about |= {"points": each, "dtype": dtype}
        measured = measure_alone(capture_grid(names, each, device, dtype), conditions)
    title = "grid" if names == list(CLASSES) else "grid-" + "-".join(names)
    title += "" if dtype == "float32" else f"-{dtype}"
    path = Path(out_dir) / f"{title}.{conditions.kind}.jsonl"
    return write_packed(path, profile_text(measured, about))


def _conditions(
    device: str, seconds: float, flush: bool | None, progress: Progress | None
) -> Conditions:
    require_device(device)
    flush = device == "cuda" if flush is None else flush
    return Conditions(device, device_kind(device), seconds, flush, progress)


def _graph_text(step: Capture, about: Mapping[str, Any]) -> str:
    """The text of a graph file, with an op on each line."""
    names = ("model", "batch", "sizes", "optimizer", "created", "tool")
    provenance = {name: about[name] for name in names} | {
        "captured": (
            "operators as PyTorch dispatches them in the joint forward and backward, views folded"
        ),
        "torch": about["device"]["torch"],
    }
    head = {"version": 1, "name": step.graph["name"], "provenance": provenance}
    lines = ",\n  ".join(json.dumps(op) for op in step.graph["ops"])
    return json.dumps(head)[:-1] + f', "ops": [\n  {lines}\n]}}\n'


def write_packed(path: Path, text: str) -> Path:
    """Writes a text, gzipped where it is large; returns the path, then with ``.gz``.

    Raises OSError.
    """
    written, stale = path, path.with_name(path.name + ".gz")
    if len(text) > GZIP_FROM:
        written, stale = stale, written
    with parents(path):
        write_text(written, text)
    # A file of an earlier run under the other name would be read in its place.
    stale.unlink(missing_ok=True)
    return written
