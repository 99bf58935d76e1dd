"""The machine of a graph whose file tells none: what the caller says of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from ..costs import DeviceSpec
from ..costs.collectives import COLLECTIVES
from ..files import device_names, preset_names, read_cluster, read_device, read_preset
from ..files.cluster import preset_hint
from ..files.device import capacity_of
from ..files.nodes import require_joinable
from ..files.shape import UNLIMITED
from ..ground.errors import InputError, prefixed, refuse
from ..ground.units import Number, parse_bandwidth, parse_bytes
from ..nouns.cluster import Cluster, Device
from ..nouns.graph import Graph
from ..nouns.semantics import traits_of
from ..nouns.strategy import Strategy
from .imported import Imported


@dataclass(frozen=True)
class Machine:
    """What is said of the machine; None: left open.

    ``cluster`` is a preset or a file and stands alone, but for ``devices`` of a format that counts
    ranks, which take so many of it; else there are ``devices`` of the kind
    ``device``, every two joined at ``bandwidth``, each with ``memory`` ("unlimited"; None: that of
    the kind's datasheet, else unlimited). Problems name the options of the command line.
    """

    cluster: str | None = None
    device: str | None = None
    devices: int | None = None
    bandwidth: Number | None = None
    memory: Number | None = None

    def __post_init__(self) -> None:
        if self.cluster is not None:
            self.refuse("--cluster tells it", "device", "bandwidth", "memory")
        if self.devices is not None and self.devices < 1:
            raise InputError(f"--devices: must be at least 1, got {self.devices}")
        require_joinable("--devices", self.devices or 1)
        # Told here, for what a file tells itself is not asked for again.
        given = ("bandwidth", self.bandwidth, parse_bandwidth), ("memory", self.memory, parse_bytes)
        for name, value, parse in given:
            try:
                if value not in (None, UNLIMITED):
                    parse(value)
            except ValueError as error:
                raise InputError(f"--{name}: {error}") from None

    def refuse(self, reason: str, *names: str) -> None:
        """Raises InputError where one of these fields is not left open."""
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        wrong = [f"--{name}: {reason}" for name in given if name in names]
        refuse(wrong)

    @cached_property
    def datasheet(self) -> DeviceSpec | None:
        """The datasheet of the kind of device, where simdev ships one."""
        return read_device(self.device) if self.device in device_names() else None

    @property
    def capacity(self) -> Number | None:
        """Bytes of a device; None: unlimited."""
        if self.memory is None and self.device is not None:
            return capacity_of(self.device)
        return None if self.memory == UNLIMITED else self.memory

    def build(self, at_least: int = 1) -> Cluster:
        """The cluster, of this many devices where their number is left open. Raises InputError."""
        if self.cluster is not None:
            if self.devices not in (None, at_least):
                raise InputError("--devices: --cluster tells it")
            return _named_cluster(self.cluster)
        kind, count = self.device or "gpu", self.devices or at_least
        if count > 1 and self.bandwidth is None:
            raise InputError(
                f"--bandwidth: missing; the file does not tell how the {count} devices are joined"
            )
        name = f"{count} x {kind}"
        family = "cpu" if Device("cpu", kind).is_host else "gpu"
        devices = [Device(f"{family}:{i}", kind, self.capacity) for i in range(count)]
        # A single device needs no bandwidth, and has no queues to choose.
        if count == 1:
            return Cluster(name, tuple(devices))
        with prefixed("--"):
            return Cluster.all_to_all(name, devices, "device", bandwidth=self.bandwidth)


def _named_cluster(path: str) -> Cluster:
    """The cluster of a preset or a file. Raises InputError."""
    if path in preset_names():
        return read_preset(path)
    if not path.endswith((".json", ".json.gz")) and not os.path.exists(path):
        hint = preset_hint(path)
        raise InputError(f'--cluster: neither a preset nor a file: "{path}"; {hint}')
    return read_cluster(path)


OPEN = Machine()


def graph_scenario(
    graph: Graph, machine: Machine, source: str, notes: Sequence[str] = (), timed: bool = False
) -> Imported:
    """A graph on a machine, all of it on the first device that runs ops.

    ``timed`` where a profile goes with it. Raises InputError.
    """
    cluster = machine.build()
    first = next(device.name for device in cluster.devices if device.runs_ops)
    more = [] if timed else _untimed(graph, cluster)
    return Imported(graph, cluster, Strategy({"*": first}), source=source, notes=(*notes, *more))


def _untimed(graph: Graph, cluster: Cluster) -> list[str]:
    """A note of ops without a time on a machine without a datasheet."""
    count = sum(
        op.time is None and traits_of(op.kind).leaf is None and op.kind not in COLLECTIVES
        for op in graph.ops
    )
    kinds = {device.kind for device in cluster.devices if device.runs_ops}
    unknown = ", ".join(sorted(kinds - set(device_names())))
    if not count or not unknown:
        return []
    return [
        f"{count} of {len(graph.ops)} ops tell no time, and {unknown} has no datasheet: add a "
        "profile (--profile), or name a --device or --cluster that simdev knows"
    ]
