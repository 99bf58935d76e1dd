"""Which op belongs to which stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...errors import InputError
from ...graph import Graph
from ...semantics import traits_of
from ...strategy import named
from ...structure import Groups, components, mates, order_of, updated
from .cut import even_cut

StageSpec = tuple[tuple[str, ...] | str, ...]
Lengths = Callable[[int], Sequence[int]]
"""By stage the ps that a microbatch spends on an op (its position), if it stands there."""


def stages_of(graph: Graph, spec: StageSpec, count: int, lengths: Lengths) -> list[int]:
    """The stage of every op, of ``count``.

    ``spec`` are the patterns of the forward ops of each stage, or the first op of each but the
    first; nothing: forward ops are cut where the longest stage takes least time, those that share a
    weight or a group staying together. What patterns leave out goes with what it reads. Leaves go
    with their first reader, backward ops with their forward op, updates with their parameter.
    Raises InputError.
    """
    leaf = [traits_of(op.kind).leaf is not None for op in graph.ops]
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward" and not leaf[i]]
    stages, mate = [-1] * len(graph.ops), mates(graph)
    if spec and isinstance(spec[0], tuple):
        _by_pattern(graph, spec, count, forward, stages)
    else:
        piece = _pieces(graph, forward)
        even = _even(graph, mate, piece, lengths)
        _by_order(graph, spec, count, piece, even, stages)
    _forward_leaves(graph, stages)
    _backward(graph, mate, stages, count)
    _updates(graph, stages)
    return stages


def _by_pattern(
    graph: Graph, patterns: StageSpec, count: int, forward: Sequence[int], stages: list[int]
) -> None:
    if len(patterns) != count:
        raise InputError(f"stages: are {len(patterns)}, the schedule has {count}")
    entries: dict[str, int] = {}
    problems = []
    for stage, texts in enumerate(patterns):
        for pattern in texts:
            if entries.setdefault(pattern, stage) != stage:
                problems.append(
                    f'stages[{stage}]: "{pattern}" stands in stages[{entries[pattern]}]'
                )
    keys = named(graph, entries)
    problems += [
        f'stages[{entries[key]}]: no op and no group is called or matched by "{key}"'
        for key in keys.unused
    ]
    problems += [
        f'stages: "{op}" matches "{key}" and "{other}", of different stages'
        for op, key, other in keys.clashes
    ]
    if problems:
        raise InputError(problems)
    # one op for each two stages is told
    computes, wrong = set(forward), dict[tuple[int, int], str]()
    for i in order_of(graph, range(len(graph.ops))):
        if i in computes:
            before = [stages[producer] for producer, _ in graph.reads[i] if producer in computes]
            key = keys.keys[i]
            late = max(before, default=0)
            stages[i] = late if key is None else entries[key]
            if late > stages[i]:
                name = graph.ops[i].name
                problem = f'stages: "{name}" of stage {stages[i]} needs what stage {late} makes'
                wrong.setdefault((stages[i], late), problem)
    if wrong:
        raise InputError(wrong.values())
    _require_all(count, stages, forward)


def _require_all(count: int, stages: Sequence[int], forward: Sequence[int]) -> None:
    empty = sorted(set(range(count)) - {stages[i] for i in forward})
    if empty:
        raise InputError(f"stages[{empty[0]}]: holds no forward op")


def _by_order(
    graph: Graph,
    firsts: StageSpec,
    count: int,
    piece: dict[int, int],
    even: Callable[[int, int], list[int]],
    stages: list[int],
) -> None:
    """Pieces in a topological order, cut before given ops or evenly."""
    pieces = max(piece.values(), default=-1) + 1
    if firsts:
        cuts = [0, *_cuts(graph, firsts, count, piece), pieces]
    elif pieces < count:
        raise InputError(
            f"stages: {count} are wanted, but what shares weights or groups stays "
            "together, and that "
            f"leaves {pieces} pieces; tell which ops belong to which stage"
        )
    else:
        cuts = even(pieces, count)
    for i, number in piece.items():
        stages[i] = sum(number >= cut for cut in cuts[1:-1])
    _require_all(count, stages, list(piece))


def _pieces(graph: Graph, forward: Sequence[int]) -> dict[int, int]:
    """What of the forward ops stays together, numbered in a topological order.

    Ops of one kind that read one weight (the steps of an unrolled layer), ops of one group, and
    what goes from some of them to others.
    """
    place, groups = {i: k for k, i in enumerate(forward)}, Groups(len(forward))
    first: dict[object, int] = {}
    edges = []
    for i in forward:
        op = graph.ops[i]
        for producer, output in graph.reads[i]:
            if producer in place:
                edges.append((place[producer], place[i]))
            elif traits_of(graph.ops[producer].kind).leaf == "parameter":
                alike: object = op.kind, producer, output
                groups.unite([(first.setdefault(alike, place[i]), place[i])])
        if op.colocate is not None:
            groups.unite([(first.setdefault(op.colocate, place[i]), place[i])])
    roots = groups.roots()
    together = [(roots[k], k) for k in range(len(forward))]
    both = [pair for a, b in together for pair in ((a, b), (b, a)) if a != b]
    component = components(len(forward), [*edges, *both])
    return {i: component[k] for i, k in place.items()}


def _cuts(graph: Graph, firsts: StageSpec, count: int, piece: dict[int, int]) -> Iterator[int]:
    if len(firsts) != count - 1:
        wanted = f"{count - 1} first ops of further stages"
        raise InputError(f"stages: the schedule has {count} and needs {wanted}, got {len(firsts)}")
    before = 0
    for k, name in enumerate(firsts):
        position = graph.index.get(str(name), -1)
        if position not in piece:
            raise InputError(f'stages[{k}]: "{name}" is no forward op that computes')
        if piece[position] <= before:
            raise InputError(f'stages[{k}]: "{name}" comes no later than the stage before begins')
        before = piece[position]
        yield before


def _even(
    graph: Graph, mate: Sequence[int], piece: dict[int, int], lengths: Lengths
) -> Callable[[int, int], list[int]]:
    """The cut of pieces into stages by the ps of a microbatch, forward and back."""

    def even(pieces: int, count: int) -> list[int]:
        times = [[0] * pieces for _ in range(count)]
        for i, forward in enumerate(mate):
            if forward in piece and graph.ops[i].phase != "update":
                for stage, length in enumerate(lengths(i)):
                    times[stage][piece[forward]] += length
        return even_cut(times)

    return even


def _forward_leaves(graph: Graph, stages: list[int]) -> None:
    """Leaves of the forward pass: each goes with the first of those who read it."""
    for i in reversed(order_of(graph, range(len(graph.ops)))):
        for producer, _ in graph.reads[i]:
            op = graph.ops[producer]
            leaf = traits_of(op.kind).leaf is not None and op.phase == "forward"
            if leaf and graph.ops[i].phase == "forward":
                stages[producer] = min(
                    stages[i], stages[producer] if stages[producer] >= 0 else stages[i]
                )


def _backward(graph: Graph, mate: Sequence[int], stages: list[int], count: int) -> None:
    """Backward ops stand with their forward op, but never behind what they wait for.

    The last stage goes back first, so an op may only need what its own or a later stage makes.
    """
    for i in order_of(graph, range(len(graph.ops))):
        if graph.ops[i].phase == "backward":
            before = [
                stages[producer]
                for producer, _ in graph.reads[i]
                if graph.ops[producer].phase == "backward"
            ]
            home = stages[mate[i]] if mate[i] >= 0 and stages[mate[i]] >= 0 else count - 1
            stages[i] = min([home, *before])
    for i, reads in enumerate(graph.reads):
        for producer, _ in reads:  # leaves that only backward ops read
            if stages[producer] < 0 and graph.ops[i].phase == "backward":
                stages[producer] = stages[i]


def _updates(graph: Graph, stages: list[int]) -> None:
    """Updates stand with their parameter, else with what they read; all that is left in stage 0."""
    parameters = updated(graph)
    for i in order_of(graph, range(len(graph.ops))):
        if graph.ops[i].phase == "update":
            homes = [stages[leaf] for leaf in parameters.get(i, ()) if stages[leaf] >= 0]
            read = [stages[producer] for producer, _ in graph.reads[i]]
            stages[i] = homes[0] if homes else max(read, default=-1)
    for i, stage in enumerate(stages):
        stages[i] = max(stage, 0)
