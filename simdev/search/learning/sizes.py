"""What may be chosen of networks and of their training, without a trace of PyTorch: settings are
read where it is missing too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """Sizes of a Seq2Seq.

    ``hidden`` numbers are in the states of the LSTMs, ``embedding`` stand for a kind and for a
    device. ``attention`` is "dot" or "additive"; ``aligned`` is what a stage's score of its own
    group begins with, beyond that of the others, ``forget`` what the biases of all forget gates
    begin with (both are trained; ours). Logits are ``bound`` x tanh(l / ``temperature``).
    ``biases``: all gates and the output have biases; without, only forget gates have one number
    together. ``both_ways``: half of the encoder's state reads from the last group to the first.
    """

    hidden: int
    embedding: int
    attention: str
    aligned: float
    bound: float
    temperature: float
    forget: float = 0.0
    biases: bool = True
    both_ways: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """How a policy is trained.

    ``samples`` placements an update, in parts for ``controllers``: each part is sampled and
    differentiated by itself, so the answer hangs on their number but not on that of the processes.
    ``rate`` is Adam's, ``clip`` the largest norm of the gradient of all weights. A warm start is
    imitated until a sample is expected to differ from it in ``differing`` groups. Every ``decodes``
    updates the likeliest placement is evaluated. ``overflow_fails`` says whether what does not fit
    fails (signals.py).
    """

    samples: int
    controllers: int
    rate: float
    clip: float
    differing: float
    decodes: int
    overflow_fails: bool = True
