"""One request in, one reply out: bytes to bytes over a ServerState, without any stream.

Nothing that a client sends raises an exception here; the reply reports errors. ``stdio`` and
``http`` pass requests to ``respond``, and so does the explorer, with METHODS of its own. A new
method is a row of METHODS; docs/how-to/serve.md and the DESCRIPTION of ``serve`` name it.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from ...files import read_strategy
from ...files.reading import parse_json, shown
from ...files.strategy import is_bare
from ...ground.ending import Deadline, LateError
from ...ground.errors import InputError, prefixed
from ...ground.version import __version__
from ...nouns.scale import scale_of
from ...nouns.strategy import Strategy
from ...oracle import Cost, Oracle
from ...oracle.session import PlacementSession
from .errors import HeavyError, RequestError, error_json
from .state import Loaded, ServerState

PROTOCOL = 1
CHUNK = 256  # strategies in one call of the kernels; a deadline can end work between calls
SAMPLE = 4  # strategies of a batch whose time serves to estimate the time of all
# Up to 2^53 every JSON library keeps a whole number as it is.
MOST_ID, LONGEST_ID = 2**53, 256

Methods = Mapping[str, Callable[..., Any]]
Assignment = Strategy | list[int] | dict[str, str]
"""A strategy, device indices by group, or devices by op."""


class Request(NamedTuple):
    """A request whose method exists and has the parameters that it needs."""

    identity: str | int | None
    method: str
    params: dict[str, Any]


class Reply(NamedTuple):
    """The bytes of a reply, without a line break, and the code of its error ("": none)."""

    body: bytes
    code: str = ""


def respond(
    state: ServerState,
    line: bytes,
    methods: Methods | None = None,
    parent: int | None = None,
) -> Reply:
    """The reply to a request by one of the ``methods`` (default: METHODS), within the time limit.

    ``parent`` is a process; when it ends, this one ends too, even amid work. Raises HeavyError.
    """
    request, methods = None, METHODS if methods is None else methods
    try:
        with Deadline(state.limits.seconds, parent):
            request = read_request(state, line, methods)
            return answered(state, request, methods)
    except HeavyError:
        raise
    except (Exception, LateError) as error:
        identity = getattr(error, "identity", None) if request is None else request.identity
        return failure(error, identity, state)


def answered(state: ServerState, request: Request, methods: Methods) -> Reply:
    """The reply of one of the ``methods``. Raises whatever the method raises."""
    result = methods[request.method](state, **request.params)
    body = _encoded({"id": request.identity, "result": result})
    most = state.limits.reply_bytes
    if len(body) > most:
        raise RequestError(f"the reply is larger than {most} bytes", "too_large")
    state.count(failed=False)
    return Reply(body)


def failure(
    error: Exception | LateError,
    identity: str | int | None = None,
    state: ServerState | None = None,
) -> Reply:
    """The reply for an error, which ``state`` counts if it is given."""
    if state is not None:
        state.count(failed=True)
    problem = error_json(error)
    return Reply(_encoded({"id": identity, "error": problem}), problem["code"])


def too_long(state: ServerState) -> RequestError:
    """The error of a request beyond the limit, for carriers that stop reading it there."""
    most = state.limits.request_bytes
    return RequestError(f"the request is larger than {most} bytes", "too_large")


def _encoded(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply, allow_nan=False, separators=(",", ":")).encode("ascii")


def read_request(state: ServerState, line: bytes, methods: Methods) -> Request:
    """The request in these bytes. Raises RequestError, with the ``identity`` as far as known."""
    document = _parsed(state, line)
    identity = _identity(document)
    try:
        return Request(identity, *_checked(document, methods))
    except RequestError as error:
        error.identity = identity
        raise


def _parsed(state: ServerState, line: bytes) -> dict[str, Any]:
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


def _identity(request: dict[str, Any]) -> str | int | None:
    identity = request.get("id")
    # ``type`` and not ``isinstance``: true is no number.
    is_text = type(identity) is str and len(identity) <= LONGEST_ID
    if identity is None or is_text or (type(identity) is int and abs(identity) <= MOST_ID):
        return identity
    raise RequestError(
        f"id: must be a text of up to {LONGEST_ID} characters or a whole number up to 2^53"
    )


def _checked(request: dict[str, Any], methods: Methods) -> tuple[str, dict[str, Any]]:
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
    return method, params


@cache  # a signature takes as long as a small score
def _parameters(method: Callable[..., Any]) -> dict[str, bool]:
    """The parameters of a method after the state: by name whether they are required."""
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
    """A strategy in a form that the oracle takes. Raises InputError."""
    if isinstance(value, list):
        if any(type(device) is not int for device in value):
            raise RequestError(f"{path}: must hold whole numbers only (device indices)")
        return value
    if not isinstance(value, dict):
        raise RequestError(f"{path}: must be a list of device indices, a strategy or a placement")
    with prefixed(f"{path}."):
        strategy = read_strategy(value)
    return dict(strategy.placement) if is_bare(value) else strategy


# The default of a request without a strategy, which means the scenario's; null is refused.
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


def warm_up() -> None:
    """Load the modules and kernels that the first request of each kind would load."""
    ops = [{"name": "a", "time": 1}, {"name": "b", "time": 1, "inputs": ["a"]}]
    cluster = {"devices": [{"name": "x"}], "links": {"all_to_all": {"bandwidth": "1 GB/s"}}}
    scenario = {"graph": {"ops": ops}, "cluster": cluster, "strategy": {"*": "x"}}
    state = ServerState()
    handle = _load(state, scenario | {"version": 1})["scenario"]
    _batch(state, handle, [[0, 0]])
    _trace(state, handle)
    session = _session(state, handle)["session"]
    _propose(state, session, 0, 0)
    _accept(state, session)


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
    # The first call includes work that is done once; the next ones show the time per strategy.
    costs = _some(oracle, assignments[:1], 0)
    begun = time.perf_counter()
    costs += _some(oracle, assignments[1 : 1 + SAMPLE], 1)
    state.admit((time.perf_counter() - begun) / SAMPLE * (count - len(costs)))
    for start in range(len(costs), count, CHUNK):
        costs += _some(oracle, assignments[start : start + CHUNK], start)
    return [cost_json(cost) for cost in costs]


def _some(oracle: Oracle, assignments: list[Assignment], start: int) -> list[Cost]:
    try:
        return oracle.batch(assignments)
    except InputError:
        # One by one, to name the wrong strategy; the costs of those before it are remembered.
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
    repeats = loaded.scenario.steps == "repeated"
    state.admit(scale_of(oracle.graph, oracle.cluster, assignment, repeats).seconds)
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


@contextmanager
def _opened(state: ServerState, session: Any) -> Iterator[PlacementSession]:
    """The session of a name. A deadline in the block closes it, for its state is then unknown."""
    name = _require(session, "session", (str,), "text")
    try:
        yield state.session(name)
    except LateError:
        state.close(name)
        raise


def _propose(state: ServerState, session: Any, unit: Any, device: Any) -> Any:
    with _opened(state, session) as opened:
        for name, value in (("unit", unit), ("device", device)):
            _require(value, name, (str, int), "a name or a whole number")
        return cost_json(opened.propose(unit, device))


def _accept(state: ServerState, session: Any) -> Any:
    with _opened(state, session) as opened:
        return cost_json(opened.accept())


def _reject(state: ServerState, session: Any) -> Any:
    with _opened(state, session) as opened:
        opened.reject()
        return cost_json(opened.cost)


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
