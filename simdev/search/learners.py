"""The options of methods that learn, and their checks.

A class of settings is a frozen dataclass whose fields have defaults and are of type int, float,
str, bool, or Literal of texts; its classmethod ``published`` returns the settings of the paper.
Numbers must be greater than 0 and at most LARGEST, unless ``bounded`` declares the field.

run.py, comparisons and ``simdev/learn/pretraining.py`` call ``requested``, which makes the checked
``Learning`` of trial.py. A new option is a field of both ``LearnerOptions`` and ``Learning``, an
argument of ``search``, and an option in ``simdev/commands/search.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from math import isfinite, nan
from reprlib import repr as brief
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..files.reading import PathLike
from ..ground.errors import InputError, install_line, prefixed, refuse
from ..ground.jobs import is_serial, require_joblib
from ..ground.units import exact, parse_whole
from .methods import METHODS, name_of
from .policy import SavedPolicy, load_policy, require_method
from .trial import AUTO, RANDOM, SHARE, Learning

OF_POLICIES = ("policy", "train")  # options of learners whose policies can be saved


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """The options of learners that a caller of ``search`` gives; None: not given."""

    settings: Settings | object | None = None
    warm: str | None = None
    policy: SavedPolicy | PathLike | None = None
    train: bool = True
    n_jobs: int | None = None

    def given(self) -> Iterator[str]:
        """The names of the options that are given."""
        for name in ("settings", "warm", "policy", "n_jobs"):
            if getattr(self, name) is not None:
                yield name
        if self.train is not True:
            yield "train"


def requested(method: object, options: LearnerOptions) -> Learning | None:
    """The checked options of a learner; None for other methods.

    Raises InputError for malformed options, and for any option that is given to another method.
    """
    if not isinstance(method, str) or METHODS[method].learner is None:
        refuse(of_learners_alone(option, name_of(method)) for option in options.given())
        return None
    if not METHODS[method].keeps:
        refuse(keeps_none(option, method) for option in options.given() if option in OF_POLICIES)
    if not isinstance(options.train, bool):
        raise InputError(f"train: must be true or false, got {options.train!r}")
    if not options.train and options.policy is None:
        raise InputError("train: without training there must be a policy to evaluate")
    if not is_serial(options.n_jobs):
        require_joblib()
    start, share = _start(options)
    policy = _policy(method, options.policy)
    base = {} if policy is None else policy.settings
    settings = resolved(METHODS[method].settings, options.settings, base)
    jobs = None if options.n_jobs is None else int(options.n_jobs)
    return Learning(settings, policy, options.train, jobs, start, share)


def keeps_none(option: str, name: str) -> str:
    """The message that a learner without saved policies takes no option of policies."""
    return f"{option}: {name} learns no policy"


def of_learners_alone(option: str, name: str) -> str:
    """The message that a method that does not learn takes no option of learners."""
    learners = ", ".join(name for name in METHODS if METHODS[name].learner)
    return f"{option}: goes with methods that learn ({learners}), not with {name}"


def require_torch(method: str) -> None:
    """Raises InputError where a method needs PyTorch and it is missing."""
    if METHODS[method].torch and find_spec("torch") is None:
        raise InputError(f"{method} needs PyTorch: {install_line('torch')}")


def _start(options: LearnerOptions) -> tuple[str, float]:
    """The name of the start in ``warm``, and its share of the budget."""
    if options.warm is None:
        return AUTO, SHARE
    if not isinstance(options.warm, str):
        raise InputError(f"warm: must be a name, got {options.warm!r}")
    if options.policy is not None:
        raise InputError("warm: the search begins with a policy; it takes no other start")
    name, colon, text = options.warm.partition(":")
    starts = [name for name, method in METHODS.items() if not (method.splits or method.learner)]
    if name not in (AUTO, *starts):
        listed = ", ".join([AUTO, *starts])
        raise InputError(f'warm: must be one of {listed}, got "{options.warm}"')
    try:
        share = float(exact(text)) if colon else SHARE
    except ValueError:
        share = nan
    if not 0 < share <= 1 or (colon and name in (AUTO, RANDOM)):
        raise InputError(
            "warm: a share of the budget belongs to a method and must be in (0, 1], got "
            f'"{options.warm}"'
        )
    return name, share


def _policy(method: str, given: object) -> SavedPolicy | None:
    """The policy to begin with. Raises InputError where another method learned it."""
    if given is None or isinstance(given, SavedPolicy):
        policy = given
    elif isinstance(given, (str, os.PathLike)):
        try:
            policy = load_policy(given)
        except InputError as error:
            raise InputError(f"policy: {error}") from None
    else:
        raise InputError(f"policy: must be a path or a SavedPolicy, got {given!r}")
    if policy is not None:
        with prefixed("policy: "):
            require_method(policy, method)
    return policy


# Settings: values by name, checked against the fields of a class.

Settings = str | Mapping[str, Any]
PUBLISHED = "published"
LARGEST = 1e30  # of numbers: weights in 32 bits hold no more than some 1e38
TRUTHS = {"true": True, "false": False}


def bounded(default: float, least: float | None = None, most: float = LARGEST) -> Any:
    """A field of settings: a number of at least ``least`` (None: above 0) and at most ``most``."""
    return field(default=default, metadata={"least": least, "most": most})


def resolved(kind: type[Any], given: Settings | object | None, base: Settings = "") -> Any:
    """An instance of a class of settings.

    ``given`` is a mapping of values by name, a text like ``published,hidden=128`` (the first word
    alone means the paper's values), an instance, or None; the values in ``base`` replace the
    defaults. Raises InputError that lists the fields.
    """
    if isinstance(given, kind):
        given = asdict(given)
    before, after = _values(kind, base), _values(kind, {} if given is None else given)
    hints = get_type_hints(kind)
    values = before | after
    problems = [f"no {name!r}" for name in values if name not in hints]
    checked = {}
    for entry in fields(kind):
        name = entry.name
        if name in values:
            least, most = entry.metadata.get("least"), entry.metadata.get("most", LARGEST)
            try:
                checked[name] = _value(hints[name], values[name], least, most)
            except ValueError as error:
                problems.append(f"{name} must be {error}, got {brief(values[name])}")
    if problems:
        raise InputError(f"settings: {'; '.join(problems)}; there are {_listing(kind, hints)}")
    return kind(**checked)


def _values(kind: type[Any], given: object) -> dict[str, Any]:
    """The given values by name; texts stay texts."""
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if not isinstance(given, str):
        raise InputError(f"settings: must be values by name, or a text, got {given!r}")
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, equals, value = part.partition("=")
        if part == PUBLISHED:
            # Values that are written out win over the paper's, in whatever order they come.
            values = asdict(kind.published()) | values
        elif not equals:
            raise InputError(f'settings: must be "{PUBLISHED}" or NAME=VALUE, got "{part}"')
        else:
            values[name.strip()] = value.strip()
    return values


def _value(hint: Any, value: Any, least: float | None, most: float) -> Any:
    """A value converted to a field's type. Raises ValueError that says what it must be."""
    if get_origin(hint) is Literal or hint is str:
        allowed = get_args(hint)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise ValueError(f"of {', '.join(allowed)}" if allowed else "a text")
        return value
    if hint is bool:
        value = TRUTHS.get(value, value) if isinstance(value, str) else value
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value
    return _number(hint, value, least, most)


def _number(
    hint: type[int] | type[float], value: Any, least: float | None, most: float
) -> int | float:
    bound = "> 0" if least is None else f">= {least}"
    wanted = f"a whole number {bound}" if hint is int else f"a number {bound}"
    try:
        if isinstance(value, str):
            number = parse_whole(value) if hint is int else _float(value)
        else:
            number = hint(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(wanted) from None
    # 128.7 is no whole number, and True none at all.
    if not isinstance(value, str) and (isinstance(value, bool) or number != value):
        raise ValueError(wanted)
    # A whole number may have no float; infinity and not-a-number are floats.
    if isinstance(number, float) and not isfinite(number):
        raise ValueError(wanted)
    if number > most:
        raise ValueError(f"at most {most:g}")
    if not (number > 0 if least is None else number >= least):
        raise ValueError(wanted)
    return number


def _float(text: str) -> float:
    # Python also takes 1_0 and digits of other scripts, which no file of simdev holds.
    return float(text if text.isascii() and "_" not in text else "")


def _listing(kind: type[Any], hints: Mapping[str, Any]) -> str:
    """The fields, their types and defaults."""
    plain = asdict(kind())
    return ", ".join(f"{name} ({_type_name(hints[name])}, {plain[name]})" for name in plain)


def _type_name(hint: Any) -> str:
    return "/".join(get_args(hint)) or str(hint.__name__)
