"""How long bytes between devices take where nothing else is sent: by what the queues of the cluster
carry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...collectives import Question
from ...lowering import Prepared
from ...lowering.collective import ALL_REDUCE
from ...units import PS_PER_SECOND
from ..elimination import Floats


class Wires:
    """The devices that run ops, by number in this order, and what transfers between them hold."""

    def __init__(self, prepared: Prepared, devices: Sequence[int]) -> None:
        self.prepared, self.devices, self.count = prepared, tuple(devices), len(devices)
        self._loads, self._lags = self._columns()
        self._known: dict[tuple[str, tuple[int, ...], int], float] = {}

    def _columns(self) -> tuple[Floats, Floats]:
        """Seconds a byte by queue and pair of devices, and latency by pair; without queues each
        pair is one.
        """
        rows: dict[int, dict[int, float]] = {}
        lags = np.zeros(self.count**2)
        for p, source in enumerate(self.devices):
            for q, destination in enumerate(self.devices):
                if p == q:
                    continue
                pair = p * self.count + q
                for at, piece in enumerate(self.prepared.segments(source, destination)):
                    lags[pair] += (piece.held_ps + piece.lag_ps + piece.gap_ps) / 1e12
                    for queue in piece.resources or piece.flow_links or (-1 - pair * 8 - at,):
                        row = rows.setdefault(queue, {})
                        row[pair] = row.get(pair, 0.0) + 1 / float(piece.route.bandwidth)
        loads = np.zeros((max(len(rows), 1), self.count**2))
        for at, row in enumerate(rows.values()):
            loads[at, list(row)] = list(row.values())
        return loads, lags

    def seconds(self, sent: Floats) -> Floats:
        """The time to send ``sent[..., p, q]`` bytes from each device to each: the busiest queue,
        and the latency.
        """
        flat = sent.reshape(*sent.shape[:-2], -1)
        busiest: Floats = (flat @ self._loads.T).max(axis=-1)
        lag: Floats = np.where(flat > 0, self._lags, 0.0).max(axis=-1)
        return busiest + lag

    def sync(self, how: str, ranks: Sequence[int], size: int) -> float:
        """Seconds to add up ``size`` bytes that each of some devices holds, and to hand them out
        again.

        ``how`` is a strategy's ``sync``: one ring, a server on the first device, or a share of the
        sum on each.
        """
        if len(ranks) < 2:
            return 0.0
        key = how, tuple(ranks), size
        if key not in self._known:
            self._known[key] = self._sync(how, ranks, size)
        return self._known[key]

    def _sync(self, how: str, ranks: Sequence[int], size: int) -> float:
        sent = np.zeros((self.count, self.count))
        if how == "parameter-server":
            sent[list(ranks[1:]), ranks[0]] = size
            return float(self.seconds(sent) + self.seconds(sent.T))
        if how == "sharded":
            sent[np.ix_(ranks, ranks)] = size / len(ranks)
            np.fill_diagonal(sent, 0.0)
            return 2 * float(self.seconds(sent))
        own, model = self.prepared.collectives, self.prepared.model
        question = Question(
            ALL_REDUCE, tuple(self.devices[rank] for rank in ranks), size, own.algorithm
        )
        return model.forms.closed(model.form(question).phases).ps / PS_PER_SECOND
