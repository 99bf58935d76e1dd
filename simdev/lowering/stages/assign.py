"""Which op belongs to which stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...errors import InputError
from ...graph import Graph
from ...semantics import traits_of
from ...strategy.named import named
from ...structure import Groups, components, mates, order_of, updated
from .cut import even_cut

Told = tuple[tuple[str, ...] | str, ...]
Lengths = Callable[[int], Sequence[int]]
"""By stage the ps that a microbatch spends on an op (its position), if it stands there."""


def stages_of(graph: Graph, told: Told, count: int, lengths: Lengths) -> list[int]:
    """The stage of every op, of ``count``.

    ``told`` are the patterns of the forward ops of each stage, or the first op of each but the
    first; nothing: forward ops are cut where the longest stage takes least time, those that share a
    weight or a group staying together. What patterns leave out goes with what it reads. Leaves go
    with their first reader, backward ops with their forward op, updates with their parameter.
    Raises InputError.
    """
    leaf = [traits_of(op.kind).leaf is not None for op in graph.ops]
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward" and not leaf[i]]
    found, mate = [-1] * len(graph.ops), mates(graph)
    if told and isinstance(told[0], tuple):
        _by_pattern(graph, told, count, forward, found)
    else:
        piece = _pieces(graph, forward)
        even = _even(graph, mate, piece, lengths)
        _by_order(graph, told, count, piece, even, found)
    _forward_leaves(graph, found)
    _backward(graph, mate, found, count)
    _updates(graph, found)
    return found


def _by_pattern(graph: Graph, told: Told, count: int, forward: Sequence[int], found: list[int]) -> None:
    if len(told) != count:
        raise InputError(f"stages: are {len(told)}, the schedule has {count}")
    entries: dict[str, int] = {}
    problems = []
    for stage, patterns in enumerate(told):
        for pattern in patterns:
            if entries.setdefault(pattern, stage) != stage:
                problems.append(f'stages[{stage}]: "{pattern}" stands in stages[{entries[pattern]}]')
    keys = named(graph, entries)
    problems += [f'stages[{entries[key]}]: no op and no group is called or matched by "{key}"' for key in keys.unused]
    problems += [
        f'stages: "{op}" matches "{one}" and "{other}", of different stages' for op, one, other in keys.clashes
    ]
    if problems:
        raise InputError(problems)
    own, wrong = set(forward), dict[tuple[int, int], str]()  # one op for each two stages is told
    for i in order_of(graph, range(len(graph.ops))):
        if i in own:
            before = [found[producer] for producer, _ in graph.reads[i] if producer in own]
            key = keys.keys[i]
            found[i] = max(before, default=0) if key is None else entries[key]
            late = max(before, default=0)
            if late > found[i]:
                name = graph.ops[i].name
                problem = f'stages: "{name}" of stage {found[i]} needs what stage {late} makes'
                wrong.setdefault((found[i], late), problem)
    if wrong:
        raise InputError(wrong.values())
    _require_all(count, found, forward)


def _require_all(count: int, found: Sequence[int], forward: Sequence[int]) -> None:
    empty = sorted(set(range(count)) - {found[i] for i in forward})
    if empty:
        raise InputError(f"stages[{empty[0]}]: holds no forward op")


def _by_order(
    graph: Graph,
    told: Told,
    count: int,
    piece: dict[int, int],
    even: Callable[[int, int], list[int]],
    found: list[int],
) -> None:
    """Pieces in a topological order, cut before the ops that are told or evenly."""
    pieces = max(piece.values(), default=-1) + 1
    if told:
        borders = [0, *_borders(graph, told, count, piece), pieces]
    elif pieces < count:
        raise InputError(
            f"stages: {count} are wanted, but what shares weights or groups stays together, and that "
            f"leaves {pieces} pieces; tell which ops belong to which stage"
        )
    else:
        borders = even(pieces, count)
    for i, own in piece.items():
        found[i] = sum(own >= border for border in borders[1:-1])
    _require_all(count, found, list(piece))


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
    found = components(len(forward), [*edges, *both])
    return {i: found[k] for i, k in place.items()}


def _borders(graph: Graph, told: Told, count: int, piece: dict[int, int]) -> Iterator[int]:
    if len(told) != count - 1:
        wanted = f"{count - 1} first ops of further stages"
        raise InputError(f"stages: the schedule has {count} and needs {wanted}, got {len(told)}")
    before = 0
    for k, name in enumerate(told):
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
        found = [[0] * pieces for _ in range(count)]
        for i, own in enumerate(mate):
            if own in piece and graph.ops[i].phase != "update":
                for stage, length in enumerate(lengths(i)):
                    found[stage][piece[own]] += length
        return even_cut(found)

    return even


def _forward_leaves(graph: Graph, found: list[int]) -> None:
    """What no forward op has told: it goes with the first of those who read it."""
    for i in reversed(order_of(graph, range(len(graph.ops)))):
        for producer, _ in graph.reads[i]:
            op = graph.ops[producer]
            leaf = traits_of(op.kind).leaf is not None and op.phase == "forward"
            if leaf and graph.ops[i].phase == "forward":
                found[producer] = min(found[i], found[producer] if found[producer] >= 0 else found[i])


def _backward(graph: Graph, mate: Sequence[int], found: list[int], count: int) -> None:
    """Backward ops stand with their forward op, but never behind what they wait for.

    The last stage goes back first, so an op may only need what its own or a later stage makes.
    """
    for i in order_of(graph, range(len(graph.ops))):
        if graph.ops[i].phase == "backward":
            before = [found[producer] for producer, _ in graph.reads[i] if graph.ops[producer].phase == "backward"]
            own = found[mate[i]] if mate[i] >= 0 and found[mate[i]] >= 0 else count - 1
            found[i] = min([own, *before])
    for i, reads in enumerate(graph.reads):
        for producer, _ in reads:  # leaves that only backward ops read
            if found[producer] < 0 and graph.ops[i].phase == "backward":
                found[producer] = found[i]


def _updates(graph: Graph, found: list[int]) -> None:
    """Updates stand with their parameter, else with what they read; all that is left in stage 0."""
    parameters = updated(graph)
    for i in order_of(graph, range(len(graph.ops))):
        if graph.ops[i].phase == "update":
            told = [found[leaf] for leaf in parameters.get(i, ()) if found[leaf] >= 0]
            read = [found[producer] for producer, _ in graph.reads[i]]
            found[i] = told[0] if told else max(read, default=-1)
    for i, stage in enumerate(found):
        found[i] = max(stage, 0)
