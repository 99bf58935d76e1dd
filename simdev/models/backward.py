"""The backward of a recorded forward, derived op by op, and the updates.

Ops are gone through from the last to the first. The rule of a kind (``gradient``, beside its verb
in ``ops``) reads the gradients of the op's outputs and makes those of its operands; where a tensor
has several readers their gradients are added up, two at a time, as they come. This is what autograd
runs, so each gradient has shapes and cost of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import InputError
from ..graph import Graph, Op
from ..structure.names import PREFIXES
from .step import Call, Step, Value, record, seen

Gradients = Iterator[tuple[Value, Value]]
"""Operands, each with its gradient."""

Made = tuple[Value | None, ...]
"""Gradients of an op's outputs; None where nothing reads that output."""

Rule = Callable[[Call, Made], Gradients]
"""From an op and the gradients of its outputs to those of its operands."""

RULES: dict[str, Rule] = {}
UPDATES = {
    "sgd": "sgd_update",
    "momentum": "sgd_momentum_update",
    "adam": "adam_update",
    "mixed-momentum": "sgd_momentum_update",
    "mixed-adam": "adam_update",
}
"""Kinds of update ops by the optimizers of ``simdev.memory``."""


def gradient_of_all(*kinds: str) -> Callable[[Rule], Rule]:
    """Registers the rule of kinds with several outputs that have gradients."""

    def registered(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return registered


def gradient(*kinds: str) -> Callable[[Callable[[Call, Value], Gradients]], Rule]:
    """Registers the rule of kinds whose first output alone has a gradient: it gets that one."""

    def registered(rule: Callable[[Call, Value], Gradients]) -> Rule:
        def of_first(call: Call, made: Made) -> Gradients:
            return iter(()) if made[0] is None else rule(call, made[0])

        return gradient_of_all(*kinds)(of_first)

    return registered


def training_graph(loss: Value) -> Graph:
    """The graph of a step that minimises ``loss``: the forward as recorded, its backward, and the
    updates.
    """
    step = loss.step
    found = _backward(step, loss)
    for parameter in step.parameters:
        step.ops.append(_update(step, parameter, found))
    return Graph(step.name, tuple(step.ops))


def _backward(step: Step, loss: Value) -> dict[tuple[int, int], Value]:
    """Records the backward; returns the gradients of the parameters by their source."""
    found: dict[tuple[int, int], Value] = {}
    with step.back_at("loss"):
        found[loss.source] = record("ones_like", (loss,), loss.shape)
    for call in reversed(step.calls):
        made = tuple(found.pop(output.source, None) for output in call.outputs)
        if any(one is not None for one in made):
            with step.back_at(call.scope):
                for operand, new in list(RULES[call.kind](call, made)):
                    if operand.trained:
                        _accumulate(found, operand, new)
    return found


def _accumulate(found: dict[tuple[int, int], Value], operand: Value, new: Value) -> None:
    before = found.get(operand.source)
    new = new.view(*operand.stored)
    found[operand.source] = new if before is None else before + new


def _update(step: Step, parameter: Value, found: dict[tuple[int, int], Value]) -> Op:
    """The update of a parameter, which stays where the parameter is."""
    name = step.reference(parameter)
    if parameter.source not in found:
        raise InputError(f'the loss does not depend on the parameter "{name}"')
    inputs = parameter, found[parameter.source]
    references = name, step.reference(inputs[1])
    kind = UPDATES[step.optimizer]
    return Op(
        PREFIXES["update"] + name, kind, "update", references, attrs=seen(inputs), colocate=name
    )
