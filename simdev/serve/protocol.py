"""One request in, one reply out: bytes to bytes over a State, without any stream.

Nothing that a client sends raises here; the reply tells what was wrong.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import InputError
from ..files import read_strategy
from ..files.paths import shown
from ..files.reading import parse_json
from ..files.strategy import is_bare
from ..oracle import Cost, Oracle
from ..strategy import Strategy
from ..version import __version__
from .errors import RequestError, error_json
from .state import Loaded, State

PROTOCOL = 1
CHUNK = 256  # strategies between two looks at the clock
MOST_ID, LONGEST_ID = 2**53, 256

Params = dict[str, Any]
Asked = Strategy | list[int] | dict[str, str]


def respond(state: State, line: bytes) -> bytes:
    """The reply to a request, without a line break."""
    identity: str | int | None = None
    try:
        request = _parsed(state, line)
        identity = _identity(request)
        reply = _encoded({"id": identity, "result": _answer(state, request)})
        if len(reply) > state.limits.reply_bytes:
            raise RequestError(
                "too_large", f"the reply is larger than {state.limits.reply_bytes} bytes"
            )
    except Exception as error:
        state.count(failed=True)
        return failure(error, identity)
    state.count(failed=False)
    return reply


def failure(error: Exception, identity: str | int | None = None) -> bytes:
    """The reply that tells an error."""
    return _encoded({"id": identity, "error": error_json(error)})


def too_long(state: State) -> RequestError:
    """The error of a request beyond the limit, which its carrier finds before it has all of it."""
    return RequestError(
        "too_large", f"the request is larger than {state.limits.request_bytes} bytes"
    )


def _encoded(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply, allow_nan=False, separators=(",", ":")).encode("ascii")


def _parsed(state: State, line: bytes) -> Params:
    if len(line) > state.limits.request_bytes:
        raise too_long(state)
    try:
        value = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError("malformed", f"not UTF-8 text: byte {error.start}") from None
    except InputError as error:
        raise RequestError("malformed", error.problems[0]) from None
    if not isinstance(value, dict):
        raise RequestError("malformed", f"a request is an object, got {shown(value)}")
    return value


def _identity(request: Params) -> str | int | None:
    identity = request.get("id")
    if identity is None:
        return None
    if type(identity) is str and len(identity) <= LONGEST_ID:
        return identity
    if type(identity) is int and abs(identity) <= MOST_ID:
        return identity
    raise RequestError(
        "invalid",
        f"id: must be a text of up to {LONGEST_ID} characters or a whole number up to 2^53",
    )


def _answer(state: State, request: Params) -> Any:
    unknown = sorted(set(request) - {"id", "method", "params"})
    if unknown:
        raise RequestError(
            "invalid", f"{unknown[0]}: unknown key; a request has id, method and params"
        )
    method, params = request.get("method"), request.get("params", {})
    if not isinstance(method, str) or method not in METHODS:
        raise RequestError(
            "unknown_method", f"method: must be one of {', '.join(METHODS)}, got {shown(method)}"
        )
    if not isinstance(params, dict):
        raise RequestError("invalid", f"params: must be an object, got {shown(params)}")
    answer, required, optional = METHODS[method]
    for name in params:
        if name not in (*required, *optional):
            raise RequestError("invalid", f"params: {method} knows no {shown(name)}")
    for name in required:
        if name not in params:
            raise RequestError("invalid", f"params.{name}: missing")
    return answer(state, params)


def _text(params: Params, name: str) -> str:
    value = params[name]
    if not isinstance(value, str):
        raise RequestError("invalid", f"params.{name}: must be text, got {shown(value)}")
    return value


def _name_or_index(params: Params, name: str) -> str | int:
    value = params[name]
    if type(value) not in (str, int):
        raise RequestError(
            "invalid", f"params.{name}: must be a name or a whole number, got {shown(value)}"
        )
    found: str | int = value
    return found


def _asked(value: Any, where: str) -> Asked:
    """A strategy as the oracle takes it. Raises InputError."""
    if isinstance(value, list):
        if any(type(one) is not int for one in value):
            raise RequestError("invalid", f"{where}: must hold whole numbers only (device indices)")
        return value
    if not isinstance(value, dict):
        raise RequestError(
            "invalid", f"{where}: must be a list of device indices, a strategy or a placement"
        )
    try:
        strategy = read_strategy(value)
        return dict(strategy.placement) if is_bare(value) else strategy
    except InputError as error:
        raise InputError([f"{where}.{problem}" for problem in error.problems]) from None


def _question(state: State, params: Params) -> tuple[Loaded, Asked]:
    loaded = state.scenario(_text(params, "scenario"))
    if "strategy" not in params:
        return loaded, loaded.scenario.strategy
    return loaded, _asked(params["strategy"], "params.strategy")


def cost_json(cost: Cost) -> dict[str, Any]:
    """A cost as replies write it."""
    return {
        "seconds": cost.seconds,
        "feasible": cost.feasible,
        "memory_excess": cost.memory_excess,
        "step_ps": cost.step_ps,
        "peaks": list(cost.peaks),
    }


def _load(state: State, params: Params) -> Any:
    loaded = state.load(params["scenario"])
    return {
        "scenario": loaded.handle,
        "ops": len(loaded.oracle.graph.ops),
        "groups": len(loaded.oracle.groups),
        "devices": [device.name for device in loaded.oracle.cluster.devices],
    }


def _score(state: State, params: Params) -> Any:
    loaded, asked = _question(state, params)
    return cost_json(loaded.oracle(asked))


def _batch(state: State, params: Params) -> Any:
    oracle, values = state.scenario(_text(params, "scenario")).oracle, params["strategies"]
    if not isinstance(values, list):
        raise RequestError("invalid", f"params.strategies: must be a list, got {shown(values)}")
    if len(values) > state.limits.batch:
        raise RequestError(
            "too_large",
            f"params.strategies: at most {state.limits.batch} at once, got {len(values)}",
        )
    asked = [_asked(value, f"params.strategies[{i}]") for i, value in enumerate(values)]
    end, costs = time.monotonic() + state.limits.seconds, list[Cost]()
    for at in range(0, len(asked), CHUNK):
        if state.closed:
            raise RequestError(
                "stopping", f"the server is going down; {at} of {len(asked)} strategies were scored"
            )
        if time.monotonic() > end:
            raise RequestError(
                "too_late", f"{state.limits.seconds:g} s are over; {at} of {len(asked)} were scored"
            )
        costs += _chunk(oracle, asked[at : at + CHUNK], at)
    return [cost_json(cost) for cost in costs]


def _chunk(oracle: Oracle, asked: list[Asked], at: int) -> list[Cost]:
    try:
        return oracle.batch(asked)
    except InputError:
        for i, one in enumerate(asked, at):  # tell which; those before it are remembered
            try:
                oracle(one)
            except InputError as error:
                raise type(error)(
                    [f"params.strategies[{i}]: {problem}" for problem in error.problems]
                ) from None
        raise


def _trace(state: State, params: Params) -> Any:
    from ..analysis import analyze
    from ..scenario import execute

    loaded, asked = _question(state, params)
    oracle = loaded.oracle
    strategy = asked if isinstance(asked, Strategy) else oracle.strategy(asked)
    outcome = execute(replace(loaded.scenario, strategy=strategy), oracle.prepared)
    trace, tasks = outcome.trace, outcome.trace.task_graph.tasks
    columns = {
        "name": list(tasks.name),
        "kind": list(tasks.kind),
        "start_ps": trace.start.tolist(),
        "finish_ps": trace.finish.tolist(),
    }
    return analyze(outcome).to_json() | {"tasks": columns}


def _session(state: State, params: Params) -> Any:
    loaded, asked = _question(state, params)
    if isinstance(asked, Strategy) and replace(asked, placement={}) != loaded.oracle.under:
        told = (
            "a session moves ops that run whole, under the scenario's order, sync and collectives"
        )
        raise InputError(f"strategy: {told}; give it a placement")
    placement = asked.placement if isinstance(asked, Strategy) else asked
    session = loaded.oracle.session(placement)
    return {"session": state.open(loaded, session), "cost": cost_json(session.cost)}


def _propose(state: State, params: Params) -> Any:
    opened = state.session(_text(params, "session"))
    unit, device = _name_or_index(params, "unit"), _name_or_index(params, "device")
    with opened.lock:
        return cost_json(opened.session.propose(unit, device))


def _accept(state: State, params: Params) -> Any:
    opened = state.session(_text(params, "session"))
    with opened.lock:
        return cost_json(opened.session.accept())


def _reject(state: State, params: Params) -> Any:
    opened = state.session(_text(params, "session"))
    with opened.lock:
        opened.session.reject()
        return cost_json(opened.session.cost)


def _stats(state: State, params: Params) -> Any:
    return state.stats()


def _ping(state: State, params: Params) -> Any:
    return {"simdev": __version__, "protocol": PROTOCOL, "methods": list(METHODS)}


def _shutdown(state: State, params: Params) -> Any:
    state.stopping = True
    return {"stopping": True}


# Method -> what answers it, its required and its optional parameters.
METHODS: dict[str, tuple[Callable[[State, Params], Any], tuple[str, ...], tuple[str, ...]]] = {
    "load": (_load, ("scenario",), ()),
    "score": (_score, ("scenario",), ("strategy",)),
    "batch": (_batch, ("scenario", "strategies"), ()),
    "trace": (_trace, ("scenario",), ("strategy",)),
    "session": (_session, ("scenario",), ("strategy",)),
    "propose": (_propose, ("session", "unit", "device"), ()),
    "accept": (_accept, ("session",), ()),
    "reject": (_reject, ("session",), ()),
    "stats": (_stats, (), ()),
    "ping": (_ping, (), ()),
    "shutdown": (_shutdown, (), ()),
}
