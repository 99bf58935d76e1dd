"""The machine of a graph whose file tells none: as it is asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from ..cluster import Cluster, Device
from ..collectives import COLLECTIVES
from ..costs import DeviceSpec
from ..errors import InputError
from ..files.cluster import preset_hint, preset_names, read_cluster, read_preset
from ..files.device import device_names, read_device
from ..files.nodes import require_joinable
from ..graph import Graph
from ..semantics import traits_of
from ..strategy import Strategy
from ..units import Number

GPU = "gpu"


@dataclass(frozen=True)
class Machine:
    """What is asked of the machine; None: left open.

    ``cluster`` is a preset or a file and stands alone; else there are ``devices`` of the kind
    ``device``, every two joined at ``bandwidth``, each with ``memory`` (None: that of the kind's
    datasheet, else unlimited).
    """

    cluster: str | None = None
    device: str | None = None
    devices: int | None = None
    bandwidth: Number | None = None
    memory: Number | None = None

    def __post_init__(self) -> None:
        beside = [
            name
            for name in ("device", "devices", "bandwidth", "memory")
            if getattr(self, name) is not None
        ]
        problems = (
            [f"--{name}: --cluster tells it" for name in beside] if self.cluster is not None else []
        )
        if self.devices is not None and self.devices < 1:
            problems.append(f"--devices: must be at least 1, got {self.devices}")
        if problems:
            raise InputError(problems)
        require_joinable("--devices", self.devices or 1)

    @property
    def asked(self) -> tuple[str, ...]:
        """What is asked for, as the command line names it."""
        names = ("cluster", "device", "devices", "bandwidth", "memory")
        return tuple(f"--{name}" for name in names if getattr(self, name) is not None)

    @cached_property
    def datasheet(self) -> DeviceSpec | None:
        """The datasheet of the kind of device that is asked for, where simdev ships one."""
        return read_device(self.device) if self.device in device_names() else None

    def build(self, at_least: int = 1) -> Cluster:
        """The cluster, of this many devices where their number is left open. Raises InputError."""
        if self.cluster is not None:
            return (
                read_preset(self.cluster)
                if self.cluster in preset_names()
                else self._of_file(self.cluster)
            )
        kind, count = self.device or GPU, self.devices or at_least
        if count > 1 and self.bandwidth is None:
            raise InputError(
                f"--bandwidth: missing; the file does not tell how the {count} devices are joined"
            )
        memory = self.memory
        if memory is None and self.datasheet is not None:
            memory = self.datasheet.memory
        devices = [Device(f"gpu:{i}", kind, memory) for i in range(count)]
        name = f"{count} x {kind}"
        if count == 1:
            return Cluster(name, tuple(devices))
        try:
            return Cluster.all_to_all(name, devices, "device", bandwidth=self.bandwidth)
        except InputError as error:
            raise InputError([f"--{problem}" for problem in error.problems]) from None

    def _of_file(self, path: str) -> Cluster:
        """The cluster of a file; what is neither that nor a preset is told as both."""
        if not path.endswith((".json", ".json.gz")) and not os.path.exists(path):
            raise InputError(
                f'--cluster: neither a preset nor a file: "{path}"; {preset_hint(path)}'
            )
        return read_cluster(path)


def on_first(cluster: Cluster) -> Strategy:
    """Everything on the first device that runs ops."""
    return Strategy({"*": next(device.name for device in cluster.devices if device.runs_ops)})


def untimed(graph: Graph, cluster: Cluster) -> tuple[str, ...]:
    """A note of ops that tell no time on a machine of which nothing is known either."""
    without = sum(
        op.time is None and traits_of(op.kind).leaf is None and op.kind not in COLLECTIVES
        for op in graph.ops
    )
    unknown = sorted(
        {device.kind for device in cluster.devices if device.runs_ops} - set(device_names())
    )
    if not without or not unknown:
        return ()
    rest = (
        f"{without} of {len(graph.ops)} ops tell no time, and {', '.join(unknown)} has no datasheet"
    )
    return (
        (f"{rest}: add a profile (--profile), or name a --device or --cluster that simdev knows"),
    )
