"""Pipelines over graphs of ops, and microbatches: the graph is one microbatch of a step of several.

The module has three parts. ``stages_of`` puts every op into a stage. ``staged`` lowers a pipeline:
each rank's queue runs its ops in the order of the schedule, parameters before the first microbatch
and updates after the last one, and tensors go between ranks as in any placement. ``accumulated``
repeats the forward and backward of a step without pipeline. Which ops run once a step, however many
microbatches there are, is told for both by ``once_a_step``.

``simdev/lowering/__init__.py`` calls ``staged`` or ``accumulated``. What an action needs is told by
``simdev/nouns/schedules/table.py``; a new kind of action gets its ops in ``_Actions``. Pipelines of
large models, which have no ops, are lowered by ``simdev/lowering/hybrid/``. That the gradients of
all microbatches are one buffer is a rule of ``simdev/lowering/copies.py``. Tests:
``tests/lowering/test_stages.py`` and ``tests/report/test_accumulate.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from ..ground.errors import InputError, prefixed, refuse
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Part, Schedule
from ..nouns.semantics import is_linear, traits_of
from ..nouns.strategy import Origin, Parallelism, named
from ..nouns.structure import Groups, components, mates, order_of, readers_of, updated
from ..nouns.taskgraph import MAX_TASKS, Bools, Ints, Rows, TaskGraph
from .build import build
from .collective import is_collective
from .copies import Copies, copied, in_order
from .pipeline import schedule_of
from .prepare import Prepared, device_problems
from .steps import LoweredStep, following
from .turns import in_given_turns

# Which op belongs to which stage of a pipeline.

StageSpec = tuple[tuple[str, ...] | str, ...]
UNKNOWN = -1


def stages_of(graph: Graph, spec: StageSpec, lengths: Ints) -> list[int]:
    """The stage of every op.

    ``lengths`` are the ps that a microbatch spends on each op, by op and by the stage that it would
    be in. ``spec`` says how forward ops are cut, in one of three forms:

    - patterns of the forward ops of each stage; an op that no pattern names goes with its
      producers;
    - the name of the first op of every stage but the first;
    - nothing: the cut makes the longest stage as short as possible, and ops that share a weight or
      a group stay together.

    Leaves go with their first reader, backward ops with their forward op, updates with their
    parameter. Raises InputError.
    """
    count, order = lengths.shape[1], order_of(graph, range(len(graph.ops)))
    leaf = [traits_of(op.kind).leaf is not None for op in graph.ops]
    forward = [i for i, op in enumerate(graph.ops) if op.phase == "forward" and not leaf[i]]
    mate = mates(graph)
    if spec and isinstance(spec[0], tuple):
        stage_of = _by_pattern(graph, spec, count, [i for i in order if i in set(forward)])
    else:
        stage_of = _by_order(graph, spec, forward, mate, lengths)
    empty = sorted(set(range(count)) - set(stage_of.values()))
    if empty:
        raise InputError(f"stages[{empty[0]}]: holds no forward op")
    stages = [stage_of.get(i, UNKNOWN) for i in range(len(graph.ops))]
    _forward_leaves(graph, leaf, order, stages)
    _backward(graph, mate, order, stages, count)
    _updates(graph, order, stages)
    return stages


def _by_pattern(
    graph: Graph, patterns: StageSpec, count: int, forward: Sequence[int]
) -> dict[int, int]:
    """The stages of forward ops, by the patterns of each stage; ``forward`` has producers first."""
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
    refuse(problems)
    stage_of: dict[int, int] = {}
    wrong: dict[tuple[int, int], str] = {}  # by pair of stages the first op that is wrong
    for i in forward:
        before = [stage_of[producer] for producer, _ in graph.reads[i] if producer in stage_of]
        late, key = max(before, default=0), keys.keys[i]
        stage = stage_of[i] = late if key is None else entries[key]
        if late > stage:
            name = graph.ops[i].name
            problem = f'stages: "{name}" of stage {stage} needs what stage {late} makes'
            wrong.setdefault((stage, late), problem)
    refuse(wrong.values())
    return stage_of


def _by_order(
    graph: Graph, firsts: StageSpec, forward: Sequence[int], mate: Sequence[int], lengths: Ints
) -> dict[int, int]:
    """The stages of forward ops: their pieces in a topological order, cut before given ops or
    evenly.
    """
    piece_of, count = _pieces(graph, forward), lengths.shape[1]
    pieces = max(piece_of.values(), default=-1) + 1
    if firsts:
        cuts = list(_cuts(graph, firsts, count, piece_of))
    elif pieces < count:
        raise InputError(
            f"stages: {count} are wanted, but what shares weights or groups stays together, and "
            f"that leaves {pieces} pieces; tell which ops belong to which stage"
        )
    else:
        # A piece takes the time of its forward ops and of the backward ops that belong to them.
        ops = [i for i, of in enumerate(mate) if of in piece_of and graph.ops[i].phase != "update"]
        times = np.zeros((pieces, count), np.int64)
        np.add.at(times, [piece_of[mate[i]] for i in ops], lengths[ops])
        cuts = even_cut(times.T.tolist())[1:-1]
    return {i: bisect_right(cuts, piece) for i, piece in piece_of.items()}


def _pieces(graph: Graph, forward: Sequence[int]) -> dict[int, int]:
    """By forward op the number of its piece, in a topological order; a piece stays together.

    Together are ops of one kind that read the same weight (the steps of an unrolled layer), ops of
    one colocation group, and the ops on a path between two such ops.
    """
    place, groups = {i: k for k, i in enumerate(forward)}, Groups(len(forward))
    first: dict[object, int] = {}
    edges = []
    for i, k in place.items():
        op = graph.ops[i]
        sets: list[object] = [] if op.colocate is None else [op.colocate]
        for producer, output in graph.reads[i]:
            if producer in place:
                edges.append((place[producer], k))
            elif traits_of(graph.ops[producer].kind).leaf == "parameter":
                sets.append((op.kind, producer, output))
        groups.unite([(first.setdefault(key, k), k) for key in sets])
    # Edges both ways make a set one component, together with the ops on paths between its members.
    for k, root in enumerate(groups.roots()):
        edges += [(root, k), (k, root)]
    component = components(len(forward), edges)
    return {i: component[k] for i, k in place.items()}


def _cuts(
    graph: Graph, firsts: StageSpec, count: int, piece_of: Mapping[int, int]
) -> Iterator[int]:
    if len(firsts) != count - 1:
        wanted = f"{count - 1} first ops of further stages"
        raise InputError(f"stages: the schedule has {count} and needs {wanted}, got {len(firsts)}")
    before = 0
    for k, name in enumerate(firsts):
        position = graph.index.get(str(name), -1)
        if position not in piece_of:
            raise InputError(f'stages[{k}]: "{name}" is no forward op that computes')
        if piece_of[position] <= before:
            raise InputError(f'stages[{k}]: "{name}" comes no later than the stage before begins')
        before = piece_of[position]
        yield before


def even_cut(lengths: Sequence[Sequence[int]]) -> list[int]:
    """How many pieces come before each stage, and at the end the number of all pieces, for the cut
    whose longest stage is shortest.

    ``lengths`` are by stage and piece in ps, for stages may run on different kinds of device. No
    stage is empty, so there must be as many pieces as stages. The length of the longest stage is
    found by bisection; under a given limit each stage takes as many pieces as fit, for no other
    choice leaves fewer to later stages.
    """
    # Running sums, so that bisection finds how many pieces fit without adding them up again.
    sums = [list(accumulate(stage, initial=0)) for stage in lengths]
    low, high = 0, max(stage[-1] for stage in sums)
    while low < high:
        limit = (low + high) // 2
        if _within(sums, limit) is None:
            low = limit + 1
        else:
            high = limit
    borders = _within(sums, low)
    assert borders is not None
    return borders


def _within(sums: Sequence[Sequence[int]], limit: int) -> list[int] | None:
    """The cut under which no stage takes longer than the limit; None where there is none."""
    count, borders = len(sums[0]) - 1, [0]
    for stage, ends in enumerate(sums):
        first, left = borders[-1], len(sums) - 1 - stage
        last = min(bisect_right(ends, ends[first] + limit) - 1, count - left)
        if last <= first:
            return None
        borders.append(last)
    return borders if borders[-1] == count else None


def _forward_leaves(
    graph: Graph, leaf: Sequence[bool], order: Sequence[int], stages: list[int]
) -> None:
    """Leaves of the forward pass: each goes into the earliest stage that reads it."""
    for i in reversed(order):
        for producer, _ in graph.reads[i] if graph.ops[i].phase == "forward" else ():
            if leaf[producer] and graph.ops[producer].phase == "forward":
                reader = stages[i]
                known = stages[producer] != UNKNOWN
                stages[producer] = min(reader, stages[producer]) if known else reader


def _backward(
    graph: Graph, mate: Sequence[int], order: Sequence[int], stages: list[int], count: int
) -> None:
    """Put backward ops into the stage of their forward op, or of a producer that is in an earlier
    one.

    The backward begins in the last stage, so a backward op may only need tensors of its stage or of
    later ones.
    """
    for i in order:
        if graph.ops[i].phase == "backward":
            reads = (producer for producer, _ in graph.reads[i])
            before = [stages[p] for p in reads if graph.ops[p].phase == "backward"]
            home = stages[mate[i]] if mate[i] >= 0 else UNKNOWN
            stages[i] = min([count - 1 if home == UNKNOWN else home, *before])
    for i, reads_of in enumerate(graph.reads):
        for producer, _ in reads_of if graph.ops[i].phase == "backward" else ():
            # A leaf that only backward ops read goes with its first reader.
            if stages[producer] == UNKNOWN:
                stages[producer] = stages[i]


def _updates(graph: Graph, order: Sequence[int], stages: list[int]) -> None:
    """Put updates into the stage of their parameter, else of their last producer, and ops that have
    no stage yet into stage 0.
    """
    parameters = updated(graph)
    for i in order:
        if graph.ops[i].phase == "update":
            homes = [stages[leaf] for leaf in parameters.get(i, ()) if stages[leaf] != UNKNOWN]
            read = (stages[producer] for producer, _ in graph.reads[i])
            stages[i] = homes[0] if homes else max(read, default=UNKNOWN)
    for i, stage in enumerate(stages):
        stages[i] = max(stage, 0)


# The pass that lowers a pipeline.


def staged(prepared: Prepared, pipeline: Parallelism) -> LoweredStep:
    """One step of a pipeline over a graph, with the edges to the next step.

    Raises InputError, MissingCostError.
    """
    graph = prepared.graph
    with prefixed("strategy.pipeline."):
        schedule = schedule_of(pipeline)
        ranks = _ranks(prepared.cluster, schedule, pipeline.ranks)
    homes = [ranks[rank] for rank in schedule.rank_of]
    # An unknown duration is below 0 and counts as 0 here: ``build`` refuses it and names every op.
    lengths = np.maximum(prepared.duration[:, homes], 0)
    with prefixed("strategy.pipeline."):
        stage_of = stages_of(graph, pipeline.stages, lengths)
    placement = _together(graph, [homes[stage] for stage in stage_of])
    built = build(prepared, placement)
    task_graph = built.task_graph
    once = once_a_step(graph, {})
    copies = microbatches(task_graph, len(graph.ops), once, schedule.microbatches)
    actions = _Actions(graph, once, stage_of, schedule)
    held = task_graph.tasks.resources
    sequences = {
        device: tuple(actions.sequence(rank, copies, held, device))
        for rank, device in enumerate(ranks)
    }
    resources = tuple(
        replace(resource, policy="fixed") if queue in sequences else resource
        for queue, resource in enumerate(task_graph.resources)
    )
    task_graph = replace(task_graph, resources=resources)
    whole = copied(task_graph, copies, copies.joins(()), sequences, actions.microbatches)
    across = _across(graph, task_graph, placement, copies, sequences)
    return LoweredStep(
        whole,
        tuple(across),
        microbatch=task_graph,
        stages=tuple(stage_of),
        dispatches=in_given_turns(prepared, whole, copies, placement, built.ends),
    )


def _across(
    graph: Graph,
    task_graph: TaskGraph,
    placement: Sequence[int],
    copies: Copies,
    sequences: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, int]]:
    """Edges to the next step: parameters wait for their updates, and batches for the step before.

    A task without predecessors (a batch) waits for the last task of its rank's queue, which the
    queue would serve first anyway.
    """
    for before, after in following(graph, task_graph, placement, {}):
        if not copies.again[after]:
            yield before, after
    for row in np.flatnonzero(task_graph.predecessor_count == 0).tolist():
        sequence = sequences.get(placement[row], ()) if row < len(graph.ops) else ()
        if sequence and copies.again[row]:
            for after in copies.all_rows(row):
                yield sequence[-1], after


def _ranks(cluster: Cluster, schedule: Schedule, names: Sequence[str]) -> list[int]:
    """The device of each rank. Raises InputError."""
    if not names:
        if len(cluster.workers) < schedule.ranks:
            raise InputError(
                f'pp: pp is {schedule.ranks}, but "{cluster.name}" has {len(cluster.workers)} '
                "workers"
            )
        return list(cluster.workers[: schedule.ranks])
    problems: list[str] = []
    for rank, name in enumerate(names):
        wrong = list(device_problems(cluster, f"ranks[{rank}]", name))
        if not wrong and name in names[:rank]:
            wrong = [f'ranks[{rank}]: "{name}" is rank {names.index(name)} already']
        problems += wrong
    refuse(problems)
    return [cluster.index[name] for name in names]


def _together(graph: Graph, devices: Sequence[int]) -> list[int]:
    """The device of each op; a colocation group is on the device of its first forward op.

    A group is a parameter and the ops that use it, so it is where the parameter is needed first.
    """
    together = list(devices)
    for members in graph.groups.values():
        first = next((i for i in members if graph.ops[i].phase == "forward"), members[0])
        for i in members:
            together[i] = together[first]
    return together


class _Actions:
    """The ops (positions) that each action of a schedule runs, producers first and else in program
    order.
    """

    def __init__(
        self, graph: Graph, once: frozenset[int], stage_of: Sequence[int], schedule: Schedule
    ) -> None:
        self.schedule = schedule
        self._before: dict[int, list[int]] = defaultdict(list)  # by rank what runs once, first
        self._after: dict[int, list[int]] = defaultdict(list)  # and last
        self._ops: dict[Part, list[int]] = defaultdict(list)
        self._part_of: dict[int, Part] = {}
        weights = _weight_gradients(graph, once, stage_of)
        for i in order_of(graph, range(len(graph.ops))):
            stage = stage_of[i]
            if i in once:
                late = graph.ops[i].phase == "update" or graph.reads[i]
                single = self._after if late else self._before
                single[schedule.rank_of[stage]].append(i)
                continue
            kinds = schedule.kinds[stage]
            kind = BACKWARD if BACKWARD in kinds else WEIGHT if i in weights else INPUT
            part = 0, stage, FORWARD if graph.ops[i].phase == "forward" else kind
            self._ops[part].append(i)
            self._part_of[i] = part

    def microbatches(self, op: int) -> Sequence[int]:
        """The microbatches of an op, in the order in which its rank does them."""
        part = self._part_of.get(op, (0, -1, ""))
        return self.schedule.parts.get(part, range(self.schedule.microbatches))

    def sequence(self, rank: int, copies: Copies, held: Rows, queue: int) -> Iterator[int]:
        """The tasks of a rank's queue in order: parameters, the actions of the schedule, updates.

        ``held`` are the queues that each task holds; a collective holds none, and is left out.
        """
        yield from (i for i in self._before[rank] if queue in held[i])
        for action in self.schedule.orders[rank]:
            ops = [i for i in self._ops[self.schedule.part(action)] if queue in held[i]]
            yield from copies.by_run[action.microbatch, ops].tolist()
        yield from (i for i in self._after[rank] if queue in held[i])


def _weight_gradients(graph: Graph, once: frozenset[int], stage_of: Sequence[int]) -> set[int]:
    """Backward ops that a schedule may run late: only updates wait for them, and ops of the same
    stage that may be late too.
    """
    readers = readers_of(graph)
    late: set[int] = set()
    # Readers first: an op may be late only where all that wait for it may.
    for i in reversed(order_of(graph)):
        waiting = [reader for reader in readers[i] if reader not in once]
        can_wait = all(reader in late and stage_of[reader] == stage_of[i] for reader in waiting)
        if graph.ops[i].phase == "backward" and readers[i] and can_wait:
            late.add(i)
    return late


# The pass that runs the forward and backward of a step several times before its updates. The step
# that it gets is that of one microbatch. The forward and backward ops and the transfers between
# them are copied for each further microbatch; parameters and their transfers, the synchronisation
# of gradients and the updates stay single. Gradients are added up in place: each is one buffer,
# from the first microbatch that makes it to its last reader, and adding takes no time of its own.


def once_a_step(graph: Graph, origins: Mapping[str, Origin]) -> frozenset[int]:
    """The ops (positions) that run once, however many microbatches there are.

    These are parameters, updates, and the ops that only prepare gradients for updates: collectives,
    ops that a partition made to add up, copy or move gradients (PyTorch's ``no_sync``), and sums of
    gradients of a weight with several readers, which are added in place as over microbatches.
    ``origins`` tells for an op that a partition made what it is for.
    """
    readers = readers_of(graph)
    once = {
        i
        for i, op in enumerate(graph.ops)
        if op.phase == "update" or traits_of(op.kind).leaf == "parameter"
    }
    waiting = [producer for i in once for producer, _ in graph.reads[i]]
    while waiting:
        i = waiting.pop()
        origin = origins.get(graph.ops[i].name)
        made = is_collective(graph.ops[i]) or (origin is not None and origin.role != "shard")
        if i not in once and (made or _adds_up(graph, i)) and once.issuperset(readers[i]):
            once.add(i)
            waiting += [producer for producer, _ in graph.reads[i]]
    return frozenset(once)


def _adds_up(graph: Graph, i: int) -> bool:
    """Whether an op is a sum of tensors that several backward ops make."""
    producers = {producer for producer, _ in graph.reads[i]}
    backward = all(graph.ops[producer].phase == "backward" for producer in producers)
    return len(producers) > 1 and backward and is_linear(graph.ops[i])


def microbatches(task_graph: TaskGraph, ops: int, once: Collection[int], count: int) -> Copies:
    """The copies of tasks for ``count`` microbatches.

    The first ``ops`` tasks run the ops: all of them are copied but those in ``once``. Transfers are
    copied with their op, unless they only go to tasks that run once. Raises InputError for more
    than MAX_TASKS tasks.
    """
    rows, op = len(task_graph.tasks), task_graph.tasks.op
    again = np.ones(rows, np.bool_)
    again[list(once)] = False
    again[ops:] = (op[ops:] >= 0) & again[op[ops:]]
    is_op = np.arange(rows) < ops
    before = task_graph.predecessors
    # Only through tasks that send: an op in between makes tensors of its own.
    again[ops:] &= (
        _reached(before, again & is_op, ~is_op) | ~_reached(before, ~again & is_op, ~is_op)
    )[ops:]
    # A single task that waits for a microbatch runs with the last one, any other with the first.
    copies = Copies(again, np.zeros(rows, np.bool_), count, "@")
    if copies.total > MAX_TASKS:
        raise InputError(f"{count} microbatches lower to more than {MAX_TASKS} tasks")
    return copies


def _reached(links: Rows, marked: Bools, through: Bools) -> Bools:
    """The marked tasks, and the tasks of ``through`` that links reach from them over such tasks."""
    reached, lists = marked.copy(), links.lists()
    waiting = np.flatnonzero(marked).tolist()
    while waiting:
        for row in lists[waiting.pop()]:
            if through[row] and not reached[row]:
                reached[row] = True
                waiting.append(row)
    return reached


def accumulated(step: LoweredStep, ops: int, once: Collection[int], count: int) -> LoweredStep:
    """The step with its forward and backward run ``count`` times (``Strategy.accumulate``).

    ``ops`` is the number of ops, which are the first tasks; ``once`` are the ops that run once. A
    task without predecessors in its microbatch (the batch) waits for the last ops of the microbatch
    before it on its device, as it does for those of the step before (``following`` of
    ``simdev/lowering/steps.py``). Where the next step waits for a task, it waits for the task of
    every microbatch. Raises InputError.
    """
    task_graph = step.task_graph
    copies = microbatches(task_graph, ops, once, count)
    successors = task_graph.tasks.successors
    late = _reached(successors, copies.again, ~copies.again) & ~copies.again
    # What is sent at the end goes with the last microbatch: its id decides ties there.
    copies = replace(copies, late=late & (np.arange(len(late)) >= ops))
    sequences = in_order(task_graph, copies, late)
    across = tuple(
        (before, after) for first, after in step.across for before in copies.all_rows(first)
    )
    row = copies.by_run[0].tolist()
    return replace(
        step,
        task_graph=copied(task_graph, copies, copies.joins(step.across), sequences),
        across=across,
        later=None if step.later is None else copies.tiled(step.later),
        pushes=tuple(
            replace(push, first=row[push.first], last=row[push.last]) for push in step.pushes
        ),
        microbatch=task_graph,
        dispatches=None if step.dispatches is None else step.dispatches.in_copies(copies, late),
    )
