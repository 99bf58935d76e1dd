"""Small op graphs. Times are ps, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from simdev.nouns.graph import Graph, Op, Tensor
from worlds.tape import Tape


def op(name: str, ps: int, *inputs: str, size: int = 0, **fields: object) -> Op:
    """An op with one output of ``size`` bytes."""
    return Op(name, inputs=inputs, outputs=(Tensor(size),), time=f"{ps} ps", **fields)


def tensor(*shape: int) -> Tensor:
    """A tensor of float32, 4 bytes an element."""
    return Tensor(4 * prod(shape), shape, "float32")


def leaf(name: str, *shape: int) -> Op:
    """An input of float32, which takes no time."""
    return Op(name, "input", outputs=(tensor(*shape),), time=0)


def parameter(name: str, *shape: int) -> Op:
    """A parameter of float32, which takes no time."""
    made = tensor(*shape)
    return Op(name, "parameter", outputs=(made,), param_bytes=made.bytes, time=0)


def update(name: str, weight: str, gradient: str) -> Op:
    """A step of SGD on a parameter."""
    return Op(name, "sgd_update", "update", (weight, gradient))


def chain(*times: int, size: int = 0, **fields: object) -> Graph:
    """Ops ``o0``, ``o1``, ... of these times in ps; each reads ``size`` bytes of the one before."""
    ops = (
        op(f"o{i}", ps, *([f"o{i - 1}"] if i else []), size=size, **fields)
        for i, ps in enumerate(times)
    )
    return Graph("chain", tuple(ops))


def fan(first: object, *times: object) -> Graph:
    """An op ``s`` of time ``first``, and ops ``o0``, ``o1``, ... that read its output of 1 byte."""
    ops = [Op(f"o{i}", inputs=("s",), time=time) for i, time in enumerate(times)]
    return Graph("fan", (Op("s", outputs=(Tensor(1),), time=first), *ops))


def layers(*times: tuple[int, int], size: int = 0, parameters: int = 0, **fields: object) -> Graph:
    """A chain of layers with times (forward, backward) in ps. Each has a forward op ``f0``, ... and
    a backward op ``b0``, ..., in the colocation group ``l0``, ...

    Each op has an output of ``size`` bytes; each forward op has ``parameters`` bytes of parameters
    and the fields.
    """
    ops = []
    for i, (forward, _) in enumerate(times):
        before = [f"f{i - 1}"] if i else []
        own = {"param_bytes": parameters, "colocate": f"l{i}", **fields}
        ops.append(op(f"f{i}", forward, *before, size=size, **own))
    for i, (_, backward) in reversed(list(enumerate(times))):
        after = [f"b{i + 1}"] if i + 1 < len(times) else []
        own = {"phase": "backward", "colocate": f"l{i}"}
        ops.append(op(f"b{i}", backward, *after, f"f{i}", size=size if i else 0, **own))
    return Graph("layers", tuple(ops))


def rename(mapping: Mapping[str, str], text: str) -> str:
    """A tensor reference with its op renamed."""
    name, colon, output = text.partition(":")
    return mapping[name] + colon + output


def make_graph(tape: Tape) -> Graph:
    """A random graph of ops of 0 to 3 ps with two outputs of 0 to 2 bytes; the ops may be listed
    backwards.
    """
    ops: list[Op] = []
    for i in range(1 + tape.number(8)):
        reads = (
            {(tape.number(i), tape.pick(0, 0, 1, -1)) for _ in range(tape.number(4))}
            if i
            else set()
        )
        extra = tape.pick(0, 0, 0, 1, 2)
        ops.append(
            Op(
                f"o{i}",
                inputs=tuple(f"o{p}:{k}" for p, k in sorted(reads) if k >= 0),
                control_inputs=tuple(f"o{p}" for p, k in sorted(reads) if k < 0),
                outputs=(Tensor(tape.pick(0, 1, 1, 2)), Tensor(tape.pick(0, 1, 2))),
                time=f"{tape.pick(0, 1, 1, 2, 3)} ps",
                param_bytes=extra,
                grad_bytes=extra,
                workspace_bytes=tape.pick(0, 0, 2),
            )
        )
    return Graph("random", tuple(ops[::-1] if tape.pick(0, 0, 1) else ops))


def dag(tape: Tape) -> Graph:
    """A random graph of up to 9 ops, some in groups, with many equal sizes and times, and zeros."""
    count = 2 + tape.number(8)
    ops = []
    for i in range(count):
        before = [f"o{j}" for j in tape.some(3, i)] if i else []
        group = tape.pick(None, None, "x", "y")
        fields = {"param_bytes": tape.pick(0, 0, 2), "workspace_bytes": tape.pick(0, 0, 3)}
        ops.append(
            op(
                f"o{i}",
                tape.pick(1, 2, 5, 0),
                *before,
                size=tape.pick(1, 0, 4),
                colocate=group,
                **fields,
            )
        )
    return Graph("dag", tuple(ops))
