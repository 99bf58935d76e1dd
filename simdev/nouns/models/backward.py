"""Training steps from recorded forwards: the backward, derived op by op, and the updates.

Ops are visited from the last to the first. The rule of a kind (``gradient``, beside its verb in
``ops``) reads the gradients of the op's outputs and records the gradients of its operands. Where a
tensor has several readers, their gradients are added up in the order of arrival, two at a time.
Autograd does the same, so each gradient has its true shape and cost.

Builders are decorated by ``model``, which calls the rest. The optimizer's row in
``simdev/nouns/memory.py`` names the kind of op that updates parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import Parameter
from typing import Any

from ...ground.errors import InputError, refuse
from ...ground.units import is_count, written
from ..graph import Graph, Op
from ..memory import OPTIMIZERS
from ..structure import PREFIXES
from .builder import Call, StepBuilder, Value, read_shapes, record

Gradients = Iterator[tuple[Value, Value]]
"""Pairs of an operand and its gradient."""

OutputGradients = tuple[Value | None, ...]
"""Gradients of an op's outputs; None where nothing reads that output."""

Rule = Callable[[Call, OutputGradients], Gradients]
"""A function from an op and the gradients of its outputs to the gradients of its operands."""

RULES: dict[str, Rule] = {}


def _rule_of(kind: str) -> Rule:
    """The gradient rule of a kind. Raises InputError where it has none."""
    if kind not in RULES:
        raise InputError(f'kind "{kind}": no gradient is known (register one by "gradient")')
    return RULES[kind]


# Both decorators write into the one registry RULES, so that a kind cannot have two rules.
def gradient_of_all(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the rule of kinds with gradients of several outputs."""

    def registered(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return registered


def gradient(*kinds: str) -> Callable[[Callable[[Call, Value], Gradients]], Rule]:
    """Register the rule of kinds where only the first output has a gradient."""

    def registered(rule: Callable[[Call, Value], Gradients]) -> Rule:
        def of_first(call: Call, outputs: OutputGradients) -> Gradients:
            return iter(()) if outputs[0] is None else rule(call, outputs[0])

        return gradient_of_all(*kinds)(of_first)

    return registered


def gradients_of(
    wanted: Sequence[Value], kind: str, operands: Sequence[Value], **attrs: Any
) -> Gradients:
    """Record one op that computes the gradients of all ``wanted``, with their shapes."""
    outputs = [value.shape_dtype for value in wanted]
    return zip(wanted, wanted[0].step.record(kind, operands, outputs, **attrs), strict=True)


def training_graph(loss: Value) -> Graph:
    """The graph of a step that minimises ``loss``: the recorded forward, backward and updates."""
    step = loss.step
    gradients = _backward(step, loss)
    for parameter in step.parameters:
        step.ops.append(_update(step, parameter, gradients))
    return Graph(step.name, tuple(step.ops))


def _backward(step: StepBuilder, loss: Value) -> dict[tuple[int, int], Value]:
    """Record the backward; returns the gradients of the parameters by their source."""
    gradients: dict[tuple[int, int], Value] = {}
    with step.back_at("loss"):
        # Autograd's first op; profiles of captured steps have a row for it.
        gradients[loss.source] = record("ones_like", loss)
    # Recorded order is topological, so all readers of an output come before its op here.
    for call in reversed(step.calls):
        outputs = tuple(gradients.pop(output.source, None) for output in call.outputs)
        if any(outputs):
            with step.back_at(call.scope):
                # All at once: a rule that reads an operand twice adds up after its last op.
                for operand, new in list(_rule_of(call.kind)(call, outputs)):
                    if operand.trained:
                        new = new.view(*operand.stored)
                        before = gradients.get(operand.source)
                        gradients[operand.source] = new if before is None else before + new
    return gradients


def _update(step: StepBuilder, parameter: Value, gradients: dict[tuple[int, int], Value]) -> Op:
    """The update of a parameter, which stays where the parameter is."""
    # Colocated by name: on another device an update would send the parameter twice a step.
    name = step.reference(parameter)
    if parameter.source not in gradients:
        raise InputError(f'the loss does not depend on the parameter "{name}"')
    inputs = parameter, gradients[parameter.source]
    return Op(
        PREFIXES["update"] + name,
        OPTIMIZERS[step.optimizer].update,
        "update",
        tuple(map(step.reference, inputs)),
        attrs=read_shapes(inputs),
        colocate=name,
    )


def model(
    name: str, optimizer: str, dtype: str = "float32"
) -> Callable[[Callable[..., Value]], Callable[..., Graph]]:
    """A decorator from a function that records a forward and returns its loss to a builder of
    training steps.

    The builder takes the sizes of the forward, then ``dtype`` and ``optimizer``, whose defaults are
    given here. ``name`` is the graph's name, with sizes in braces. The builder raises InputError
    for unknown sizes and for sizes that are no whole numbers >= 1.
    """

    def decorated(forward: Callable[..., Value]) -> Callable[..., Graph]:
        # The forward's first parameter is the StepBuilder, made below.
        _, *sizes = inspect.signature(forward).parameters.values()
        defaults = {"dtype": dtype, "optimizer": optimizer}
        texts = (
            Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation="str")
            for key, default in defaults.items()
        )
        signature = inspect.Signature([*sizes, *texts], return_annotation="Graph")
        known = signature.parameters

        @wraps(forward)
        def build(*args: Any, **dims: Any) -> Graph:
            problems = [
                f"{key}: no such size; {forward.__name__} has {', '.join(known)}"
                for key in dims
                if key not in known
            ]
            # Unknown sizes are reported with the wrong ones, so binding must not stop at them.
            dims = {key: value for key, value in dims.items() if key in known}
            given = signature.bind(*args, **dims)
            problems += _problems(given.arguments, known)
            refuse(problems)
            given.apply_defaults()
            of_step = [given.arguments[key] for key in defaults]
            step = StepBuilder(name.format(**given.arguments), *of_step)
            return training_graph(forward(step, *given.args[: len(sizes)]))

        # For help(), and for the tables of docs/reference/models.md, which list the defaults.
        vars(build)["__signature__"] = signature
        return build

    return decorated


def _problems(given: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Iterator[str]:
    for name, value in given.items():
        default = parameters[name].default
        # The default decides the type of a size: bool first, since a bool is an int in Python.
        if isinstance(default, bool):
            if not isinstance(value, bool):
                yield f"{name}: must be true or false, got {written(value)}"
        elif isinstance(default, str):
            if not isinstance(value, str):
                yield f"{name}: must be a name, got {written(value)}"
        elif not ((value is None and default is None) or (is_count(value) and value >= 1)):
            yield f"{name}: must be a whole number >= 1, got {written(value)}"
