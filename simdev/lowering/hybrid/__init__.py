"""Steps of large models: data, tensor, sequence, expert and pipeline parallelism, ZeRO,
recomputation, offload.

A step is built as rows on numpy columns, one for each task of a rank of the pipeline; ``expand``
makes the tasks of all devices of them, or, where the replicas and the parts of tp are alike, those
of one device for each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ...collectives import CollectiveModel
from ...costs import DeviceSpec
from ...costs.roofline import peak_flops
from ...errors import InputError
from ...models.large import Transformer, shard_of
from ...models.large.roles import LargeStep
from ...strategy.parallelism import Parallelism
from ...taskgraph import MAX_TASKS, Ints, TaskGraph
from ..scheduled import schedule_of
from .costs import Costs
from .expand import expand
from .layout import Layout, layout
from .program import program_of
from .tail import even_layers
from .template import NONE, QUEUE_CLASS, QUEUES

__all__ = ["lower_hybrid"]


def lower_hybrid(
    model: Transformer,
    parallelism: Parallelism,
    collectives: CollectiveModel,
    specs: Mapping[str, DeviceSpec],
    symmetry: bool = True,
) -> tuple[TaskGraph, LargeStep]:
    """The task graph of a step on ``collectives.cluster``, and what its tasks are for.

    With ``symmetry`` one device stands for all of its rank of the pipeline, where all devices and
    groups cost the same: then no copy can run differently, for nothing is shared between groups but
    what all wait for. ``specs`` are datasheets by kind of device. Raises InputError.
    """
    cluster = collectives.cluster
    _require_size(2 * model.layers * parallelism.microbatches)
    schedule = schedule_of(parallelism)
    stage_layers = parallelism.stage_layers or even_layers(model.layers, schedule.stages)
    if len(stage_layers) != schedule.stages:
        raise InputError(
            f"stage_layers: tell of {len(stage_layers)} stages, the schedule has {schedule.stages}"
        )
    shard = shard_of(model, parallelism)
    whole = layout(cluster, parallelism)
    costs = Costs(whole, collectives, specs)
    program = program_of(shard, parallelism, schedule, stage_layers, costs)
    why = _unlike(costs)
    collapsed = symmetry and not why
    columns = program.columns()
    counted = _count(columns["queue"], whole)
    _require_size(program.rows if collapsed else counted)
    used = whole.collapsed if collapsed else whole
    expanded = expand(program, used, costs, cluster)
    microbatches = np.array([action.microbatch for action in schedule.actions] + [NONE], np.int32)
    plan = LargeStep(
        model, parallelism, schedule, tuple(stage_layers),
        columns["role"].astype(np.int8)[expanded.row],
        microbatches[columns["action"]][expanded.row],
        tuple(rank * used.copies for rank in range(schedule.ranks)),
        whole.copies, collapsed, why, counted, _peak(whole, costs),
    )  # fmt: skip
    return expanded.task_graph, plan


def _require_size(tasks: int) -> None:
    if tasks > MAX_TASKS:
        raise InputError(f"microbatches: the step lowers to more than {MAX_TASKS:,} tasks")


def _count(queues: Ints, whole: Layout) -> int:
    """The tasks of all devices together."""
    counts = np.array([whole.count(QUEUE_CLASS[queue]) for queue in range(QUEUES)], np.int64)
    return int(counts[queues].sum())


def _peak(whole: Layout, costs: Costs) -> float:
    """What the datasheets say that all devices together reach in bfloat16, in FLOP/s."""
    kinds = Counter(costs.cluster.devices[d].kind for ranks in whole.devices for d in ranks)
    return sum(
        float(peak_flops(costs.specs[kind], "bfloat16")) * count for kind, count in kinds.items()
    )


def _unlike(costs: Costs) -> str:
    """Why the copies of a rank differ; "" where they do not."""
    devices = costs.cluster.devices
    for rank, ones in enumerate(costs.layout.devices):
        if len({(devices[d].kind, devices[d].memory) for d in ones}) > 1:
            return f"the devices of rank {rank} of the pipeline are of several kinds"
    return "" if costs.alike else "some groups of devices communicate over slower links than others"
