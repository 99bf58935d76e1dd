"""One request in, one reply out: bytes to bytes over a ServerState, without any stream.

Nothing that a client sends raises here; the reply tells what was wrong. ``stdio`` and ``http``
carry requests to ``respond``, the explorer too with METHODS of its own. A new method is a row of
METHODS; docs/how-to/serve.md and the DESCRIPTION of ``serve`` name it.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ...files import read_strategy
from ...files.reading import parse_json, shown
from ...files.strategy import is_bare
from ...ground.errors import InputError, prefixed
from ...ground.version import __version__
from ...nouns.strategy import Strategy
from ...oracle import Cost, Oracle
from .errors import RequestError, error_json
from .state import Loaded, OpenSession, ServerState

PROTOCOL = 1
CHUNK = 256  # strategies between two looks at the clock
# Up to 2^53 every JSON library keeps a whole number as it is.
MOST_ID, LONGEST_ID = 2**53, 256

Request = dict[str, Any]
Assignment = Strategy | list[int] | dict[str, str]
"""A strategy, device indices by group, or devices by op."""


def respond(
    state: ServerState, line: bytes, methods: Mapping[str, Callable[..., Any]] | None = None
) -> bytes:
    """The reply to a request by one of the ``methods`` (None: METHODS), without a line break."""
    identity: str | int | None = None
    try:
        request = _parsed(state, line)
        identity = _identity(request)
        result = _result(state, request, METHODS if methods is None else methods)
        reply = _encoded({"id": identity, "result": result})
        most = state.limits.reply_bytes
        if len(reply) > most:
            raise RequestError(f"the reply is larger than {most} bytes", "too_large")
    except Exception as error:
        state.count(failed=True)
        return failure(error, identity)
    state.count(failed=False)
    return reply


def failure(error: Exception, identity: str | int | None = None) -> bytes:
    """The reply that tells an error."""
    return _encoded({"id": identity, "error": error_json(error)})


def too_long(state: ServerState) -> RequestError:
    """The error of a request beyond the limit, which its carrier finds before it has all of it."""
    most = state.limits.request_bytes
    return RequestError(f"the request is larger than {most} bytes", "too_large")


def _encoded(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply, allow_nan=False, separators=(",", ":")).encode("ascii")


def _parsed(state: ServerState, line: bytes) -> Request:
    if len(line) > state.limits.request_bytes:
        raise too_long(state)
    try:
        value = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text: byte {error.start}"
        raise RequestError(problem, "malformed") from None
    except InputError as error:
        raise RequestError(error.problems[0], "malformed") from None
    if not isinstance(value, dict):
        raise RequestError(f"a request is an object, got {shown(value)}", "malformed")
    return value


def _identity(request: Request) -> str | int | None:
    identity = request.get("id")
    # ``type`` and not ``isinstance``: true is no number.
    is_text = type(identity) is str and len(identity) <= LONGEST_ID
    if identity is None or is_text or (type(identity) is int and abs(identity) <= MOST_ID):
        return identity
    raise RequestError(
        f"id: must be a text of up to {LONGEST_ID} characters or a whole number up to 2^53"
    )


def _result(state: ServerState, request: Request, methods: Mapping[str, Callable[..., Any]]) -> Any:
    unknown = sorted(set(request) - {"id", "method", "params"})
    if unknown:
        raise RequestError(f"{unknown[0]}: unknown key; a request has id, method and params")
    method, params = request.get("method"), request.get("params", {})
    if not isinstance(method, str) or method not in methods:
        problem = f"method: must be one of {', '.join(methods)}, got {shown(method)}"
        raise RequestError(problem, "unknown_method")
    if not isinstance(params, dict):
        raise RequestError(f"params: must be an object, got {shown(params)}")
    is_required = _parameters(methods[method])
    for name in params:
        if name not in is_required:
            raise RequestError(f"params: {method} knows no {shown(name)}")
    for name in is_required:
        if is_required[name] and name not in params:
            raise RequestError(f"params.{name}: missing")
    return methods[method](state, **params)


@cache  # a signature takes as long as a small score
def _parameters(method: Callable[..., Any]) -> dict[str, bool]:
    """The names of a method's parameters behind the state -> whether they are required."""
    _, *parameters = inspect.signature(method).parameters.values()
    return {parameter.name: parameter.default is parameter.empty for parameter in parameters}


def _require(value: Any, name: str, kinds: tuple[type, ...], noun: str) -> Any:
    # ``type`` and not ``isinstance``: true is no number.
    if type(value) not in kinds:
        raise RequestError(f"params.{name}: must be {noun}, got {shown(value)}")
    return value


def _loaded(state: ServerState, scenario: Any) -> Loaded:
    return state.scenario(_require(scenario, "scenario", (str,), "text"))


def _assignment(value: Any, path: str) -> Assignment:
    """A strategy as the oracle takes it. Raises InputError."""
    if isinstance(value, list):
        if any(type(device) is not int for device in value):
            raise RequestError(f"{path}: must hold whole numbers only (device indices)")
        return value
    if not isinstance(value, dict):
        raise RequestError(f"{path}: must be a list of device indices, a strategy or a placement")
    with prefixed(f"{path}."):
        strategy = read_strategy(value)
    return dict(strategy.placement) if is_bare(value) else strategy


# A strategy of null is refused; a request without a strategy asks about that of its scenario.
OF_SCENARIO = object()


def _question(state: ServerState, scenario: Any, strategy: Any) -> tuple[Loaded, Assignment]:
    loaded = _loaded(state, scenario)
    if strategy is OF_SCENARIO:
        return loaded, loaded.scenario.strategy
    return loaded, _assignment(strategy, "params.strategy")


def cost_json(cost: Cost) -> dict[str, Any]:
    """A cost as replies write it."""
    names = ("seconds", "feasible", "memory_excess", "step_ps")
    return {name: getattr(cost, name) for name in names} | {"peaks": list(cost.peaks)}


def _load(state: ServerState, scenario: Any) -> Any:
    loaded = state.load(scenario)
    return {
        "scenario": loaded.handle,
        "ops": len(loaded.oracle.graph.ops),
        "groups": len(loaded.oracle.groups),
        "devices": [device.name for device in loaded.oracle.cluster.devices],
    }


def _score(state: ServerState, scenario: Any, strategy: Any = OF_SCENARIO) -> Any:
    loaded, assignment = _question(state, scenario, strategy)
    return cost_json(loaded.oracle(assignment))


def _batch(state: ServerState, scenario: Any, strategies: Any) -> Any:
    oracle, limits = _loaded(state, scenario).oracle, state.limits
    _require(strategies, "strategies", (list,), "a list")
    count = len(strategies)
    if count > limits.batch:
        problem = f"params.strategies: at most {limits.batch} at once, got {count}"
        raise RequestError(problem, "too_large")
    assignments = [
        _assignment(value, f"params.strategies[{i}]") for i, value in enumerate(strategies)
    ]
    end, costs = time.monotonic() + limits.seconds, list[Cost]()
    for start in range(0, count, CHUNK):
        if state.closed:
            problem = f"the server is going down; {start} of {count} strategies were scored"
            raise RequestError(problem, "stopping")
        if time.monotonic() > end:
            problem = f"{limits.seconds:g} s are over; {start} of {count} were scored"
            raise RequestError(problem, "too_late")
        costs += _chunk(oracle, assignments[start : start + CHUNK], start)
    return [cost_json(cost) for cost in costs]


def _chunk(oracle: Oracle, assignments: list[Assignment], start: int) -> list[Cost]:
    try:
        return oracle.batch(assignments)
    except InputError:
        # One by one, to tell which is wrong; those before it are remembered.
        for i, assignment in enumerate(assignments, start):
            with prefixed(f"params.strategies[{i}]: "):
                oracle(assignment)
        raise


def _trace(state: ServerState, scenario: Any, strategy: Any = OF_SCENARIO) -> Any:
    from ...execution.scenario import execute
    from ...report import analyze

    loaded, assignment = _question(state, scenario, strategy)
    oracle = loaded.oracle
    if not isinstance(assignment, Strategy):
        assignment = oracle.strategy(assignment)
    outcome = execute(replace(loaded.scenario, strategy=assignment), oracle.prepared)
    trace, tasks = outcome.trace, outcome.trace.task_graph.tasks
    columns = {
        "name": list(tasks.name),
        "kind": list(tasks.kind),
        "start_ps": trace.start.tolist(),
        "finish_ps": trace.finish.tolist(),
    }
    return analyze(outcome).to_json() | {"tasks": columns}


def _session(state: ServerState, scenario: Any, strategy: Any = OF_SCENARIO) -> Any:
    loaded, assignment = _question(state, scenario, strategy)
    if isinstance(assignment, Strategy):
        if replace(assignment, placement={}) != loaded.oracle.under:
            raise InputError(
                "strategy: a session moves ops that run whole, under the scenario's order, sync "
                "and collectives; give it a placement"
            )
        assignment = dict(assignment.placement)
    session = loaded.oracle.session(assignment)
    return {"session": state.open(loaded, session), "cost": cost_json(session.cost)}


def _opened(state: ServerState, session: Any) -> OpenSession:
    return state.session(_require(session, "session", (str,), "text"))


def _propose(state: ServerState, session: Any, unit: Any, device: Any) -> Any:
    opened = _opened(state, session)
    for name, value in (("unit", unit), ("device", device)):
        _require(value, name, (str, int), "a name or a whole number")
    with opened.lock:
        return cost_json(opened.session.propose(unit, device))


def _accept(state: ServerState, session: Any) -> Any:
    opened = _opened(state, session)
    with opened.lock:
        return cost_json(opened.session.accept())


def _reject(state: ServerState, session: Any) -> Any:
    opened = _opened(state, session)
    with opened.lock:
        opened.session.reject()
        return cost_json(opened.session.cost)


def _ping(state: ServerState) -> Any:
    return {"simdev": __version__, "protocol": PROTOCOL, "methods": list(METHODS)}


def _shutdown(state: ServerState) -> Any:
    state.stopping = True
    return {"stopping": True}


METHODS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "score": _score,
    "batch": _batch,
    "trace": _trace,
    "session": _session,
    "propose": _propose,
    "accept": _accept,
    "reject": _reject,
    "stats": ServerState.stats,
    "ping": _ping,
    "shutdown": _shutdown,
}
"""The function of each method; its parameters are the ones of a request's ``params``."""
