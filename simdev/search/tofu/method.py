"""The method ``tofu``."""

from __future__ import annotations

from time import process_time

from ...errors import InputError
from ..space import workers
from ..trial import Trial
from .coarse import Coarse
from .plan import recursive
from .strategy import strategy_of


def tofu(trial: Trial) -> None:
    """The partition of every op and tensor over all workers that sends the fewest bytes; it is
    simulated once.

    The objective ``communication_bytes`` is that of the paper's model: each op fetches what it
    needs. The simulated step sends fewer where ops of one device share what was fetched.
    ``details`` tells the bytes of each step of the recursion, whether elimination was exact, and
    the seconds of the search. Raises InputError for a single device.
    """
    began = process_time()
    coarse = Coarse(trial.asked.graph, trial.asked.cluster)
    count = len(workers(trial.asked.cluster))
    if count < 2:
        raise InputError("tofu: needs two devices of one kind at least")
    plan = recursive(coarse, count)
    trial.objectives["communication_bytes"] = plan.communication
    trial.details |= {
        "workers": count,
        "parts": list(plan.parts),
        "bytes_by_step": list(plan.bytes),
        "tensors": len(coarse.shapes),
        "units": len(coarse.units),
        "exact": plan.exact,
        "search_s": process_time() - began,
    }
    trial.try_strategy(strategy_of(coarse, plan, trial.given))
