"""Controllers sample a policy and differentiate a rule's loss, in this process or another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...nouns.taskgraph import Floats, Ints
from .policy import Policy
from .rules import Rule

Weights = NDArray[np.float32]


class Controller:
    """A policy and a rule, on a device. Its weights come with each call, so that any process may be
    asked.
    """

    def __init__(self, policy: Policy, rule: Rule, device: str = "cpu") -> None:
        self._policy, self._rule, self._device = policy, rule, device
        self._copies: list[Policy] = []  # that no call uses

    def sample(self, weights: Weights, uniforms: Floats) -> Ints:
        """Samples [n, S] at ``uniforms`` [n, S]."""
        with one_thread(), self._at(weights) as policy:
            samples: Ints = policy.sample(self._sent(uniforms)).cpu().numpy()
            return samples

    def gradient(
        self,
        weights: Weights,
        samples: Ints,
        old: Weights | None,
        advantages: Floats,
        left: float = 1.0,
    ) -> tuple[Weights, Weights]:
        """The gradient of the loss by weight, and the log-probabilities [n, S] of what was chosen
        when it was sampled: ``old``, or where that is None those of now. The rule sees entropies
        times ``left``.
        """
        with one_thread(), self._at(weights) as policy:
            log_chosen, spread = policy.judge(self._sent(samples))
            before = log_chosen.detach() if old is None else self._sent(old)
            gains = self._sent(advantages).to(log_chosen.dtype)
            loss = self._rule.loss(log_chosen, before, left * spread, gains)
            gradients = torch.autograd.grad(loss, list(policy.parameters()))
            return _flat(gradients), before.cpu().numpy()

    def _sent(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    @contextmanager
    def _at(self, weights: Weights) -> Iterator[Policy]:
        """A copy of the policy with these weights: threads may ask for several at once."""
        try:
            copied = self._copies.pop()
        except IndexError:
            copied = deepcopy(self._policy).to(self._device)
        set_weights(copied, weights)
        yield copied
        self._copies.append(copied)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it torch uses a single thread, so that sums are added in one order."""
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def weights_of(module: nn.Module) -> Weights:
    """All weights of a module, one after another."""
    return _flat([parameter.detach() for parameter in module.parameters()])


def set_weights(module: nn.Module, weights: Weights) -> None:
    """Give a module the weights that ``weights_of`` told."""
    begin = 0
    with torch.no_grad():
        for parameter in module.parameters():
            end = begin + parameter.numel()
            parameter.copy_(torch.from_numpy(weights[begin:end]).view_as(parameter))
            begin = end


def set_gradient(module: nn.Module, gradient: Weights) -> None:
    """Give a module the gradient that a controller told."""
    begin = 0
    for parameter in module.parameters():
        end = begin + parameter.numel()
        parameter.grad = torch.from_numpy(gradient[begin:end]).view_as(parameter)
        begin = end


def _flat(tensors: Sequence[Tensor]) -> Weights:
    flat: Weights = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
    return flat
