"""Failures of the machines of a run, and the reaction of the run (``Failures``).

The part ``failures`` of a scenario's file has these fields; ``simdev/execution/goodput.py``
simulates days of training with them, and ``simdev/report/measures/goodput.py`` reports the share
that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ground.errors import refuse
from ..ground.units import Duration, is_count, unread, written


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures and checkpoints of a long run. Devices and nodes fail independently of their age
    (exponential times); a failure stops the whole run, which loses all work since its last
    checkpoint.

    - ``device_mtbf``: mean time between failures of a device; null: never fails. By default as for
      Llama 3: 268 failures of GPUs and their memory on 16,384 GPUs in 54 days (Grattafiori et al.
      2024, arXiv 2407.21783, Table 5).
    - ``node_mtbf``: mean time between failures of a node by all other causes; null: never fails. By
      default as in the same run: 151 failures of networks, hosts and software on 2,048 nodes in 54
      days.
    - ``checkpoint``: how long training stalls for a checkpoint.
    - ``written``: how long a checkpoint is written during training before it counts (asynchronous
      checkpoints; default 0).
    - ``restart``: time from when all nodes are ready to the first new step.
    - ``spares``: nodes that are ready to replace failed ones; null (default): always enough.
    - ``swap``: how long replacing a node by a spare takes, before the restart (default 0).
    - ``repair``: time after which a failed node is a spare again; without a spare the run waits for
      it. Needed with ``spares``.
    - ``interval``: training time between two checkpoints, in whole steps; null (default): the
      best.
    - ``length``: length of the run (default 30 days).
    - ``seed``: seed of the failures (default 0).

    Raises InputError.
    """

    checkpoint: Duration
    restart: Duration
    device_mtbf: Duration | None = "9 years"
    node_mtbf: Duration | None = "2 years"
    written: Duration = 0
    spares: int | None = None
    swap: Duration = 0
    repair: Duration | None = None
    interval: Duration | None = None
    length: Duration = "30 days"
    seed: int = 0

    def __post_init__(self) -> None:
        problems = list(unread(self))
        refuse(problems or self._problems())

    def _problems(self) -> Iterator[str]:
        for name in ("device_mtbf", "node_mtbf", "interval", "length"):
            if getattr(self, name) == 0:
                yield f"{name}: must be > 0, got 0"
        if not is_count(self.seed):
            yield f"seed: must be a whole number from 0 on, got {written(self.seed)}"
        if self.spares is not None and not is_count(self.spares):
            yield f"spares: must be a whole number from 0 on, or null, got {written(self.spares)}"
        if self.spares is not None and self.repair is None:
            yield "repair: is needed with spares, for after it a node is a spare again"
