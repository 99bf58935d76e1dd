"""Policies to and from files: weights by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...ground.errors import InputError
from ...search.features import VERSION
from ...search.policy import SavedPolicy, tied_to
from ...search.trial import Trial


class Network(Protocol):
    """What can be kept: weights by name, for a number of devices; ``groups`` of which it is made, 0
    where it is for any number of them.
    """

    devices: int
    groups: int

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights, which are all that is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A policy at work in a trial, as ``trial.policy`` keeps it. ``method`` is the learner's name;
    ``any_graph``: the policy can place other graphs too.
    """

    method: str
    trial: Trial
    policy: Network
    any_graph: bool = False

    def saved(self) -> SavedPolicy:
        """The policy as it is now."""
        weights = {name: tensor.numpy().copy() for name, tensor in self.policy.state_dict().items()}
        return SavedPolicy(
            method=self.method,
            features=VERSION,
            devices=self.policy.devices,
            groups=self.policy.groups,
            graph="" if self.any_graph else tied_to(self.trial.problem.oracle),
            settings=asdict(self.trial.learning.settings),
            weights=weights,
        )


def keep(method: str, trial: Trial, policy: Network, any_graph: bool = False) -> None:
    """Make a policy the trial's, with the weights of the saved one that it begins with, if any.

    Raises InputError where these are of other sizes, or no finite numbers.
    """
    if trial.learning.policy is not None:
        _restore(policy, trial.learning.policy)
    trial.policy = Kept(method, trial, policy, any_graph)


def _restore(policy: Network, saved: SavedPolicy) -> None:
    weights = saved.weights
    parameters = policy.state_dict()
    for name in [*parameters, *weights]:
        here = tuple(parameters[name].shape) if name in parameters else None
        there = weights[name].shape if name in weights else None
        if here != there:
            raise InputError(
                f"policy: {name} has the shape {there}, where the settings want {here}"
            )
    kept = {name: _numbers(name, weights[name]) for name in parameters}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(kept[name]))


def _numbers(name: str, weights: NDArray[Any]) -> NDArray[np.float32]:
    """A copy of weights. Raises InputError where they are no finite numbers: nothing could be
    sampled, and no gradient would lead out.
    """
    if weights.dtype.kind in "fiub":
        with np.errstate(over="ignore"):  # what is too large is infinite
            numbers: NDArray[np.float32] = weights.astype(np.float32)
        if np.isfinite(numbers).all():
            return numbers
    raise InputError(f"policy: {name} must hold finite numbers")
