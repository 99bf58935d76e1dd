"""How many processes work at once: the rule of every ``n_jobs``.

joblib schedules and Loky, Dask or Ray carry out; nothing is scheduled here. The backend is the one
of an enclosing ``joblib.parallel_config``, else processes of this machine.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .errors import InputError


def is_serial(n_jobs: int | None) -> bool:
    """Whether all is done in this process: where ``n_jobs`` is 1, or None and no enclosing
    ``parallel_config`` says otherwise (it may name a cluster).

    Raises InputError for what is no number of jobs.
    """
    if n_jobs is not None:
        if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0:
            raise InputError(f"n_jobs: must be a whole number, not 0, got {n_jobs!r}")
        return n_jobs == 1
    # Where nobody has imported joblib, nobody has configured it either.
    if sys.modules.get("joblib") is None:
        return True
    from joblib.parallel import get_active_backend

    backend, jobs = get_active_backend()
    return jobs in (None, 1) and type(backend).__module__.startswith("joblib._parallel_backends")


def require_joblib() -> Any:
    """The module ``joblib``. Raises InputError where it is not installed."""
    try:
        return import_module("joblib")
    except ImportError:
        raise InputError("n_jobs: more than one needs joblib; install simdev[parallel]") from None
