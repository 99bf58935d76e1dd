"""What may be chosen of networks and of their training, without a trace of PyTorch: settings are
read where it is missing too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar


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
    fails (signals.py). ``device`` samples and differentiates: "cpu", or a GPU by "cuda"; the rest
    (Adam, imitation, decoding) is the CPU's.
    """

    samples: int
    controllers: int
    rate: float
    clip: float
    differing: float
    decodes: int
    overflow_fails: bool = True
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class PlacerSettings:
    """The settings that learners share whose policy is such a network (learning/settings.py).

    - ``hidden``, ``embedding``, ``attention``, ``aligned``, ``forget``, ``bound``, ``temperature``:
      of the network (``Network``).
    - ``samples``, ``controllers``, ``rate``, ``differing``, ``decodes``: of its training
      (``Training``).
    - ``device``: where samples are drawn and differentiated: "cpu", or a GPU by "cuda" (ours).

    A learner's own class adds its fields, and says of all where they are from.
    """

    hidden: int = 64
    embedding: int = 16
    attention: Literal["dot", "additive"] = "dot"
    aligned: float = field(default=8.0, metadata={"least": 0})
    forget: float = field(default=-1.0, metadata={"least": -10})
    # Far within what bars a device (policy.py).
    bound: float = field(default=5.0, metadata={"most": 1e6})
    temperature: float = 1.0
    samples: int = 10
    controllers: int = 1
    rate: float = 0.003
    differing: float = 3.0
    decodes: int = 10
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def network(self) -> Network:
        """The sizes of the policy."""
        return part_of(self, Network)


Part = TypeVar("Part", Network, Training)


def part_of(settings: object, kind: type[Part], **given: Any) -> Part:
    """What a learner's settings say of its network or its training: the fields of the same names,
    but for what is given.
    """
    names = [field.name for field in fields(kind) if hasattr(settings, field.name)]
    return kind(**{name: getattr(settings, name) for name in names} | given)
