"""How many small faults of the engines, the oracle, the checker and the memory the tests notice.

    python -m tests.mutation --count 300 --seed 0

Prints the score and the mutants that no test noticed. Results are kept in ``--folder``, by the
state of the modules, and a later call goes on from there. ``--again TEXT`` runs anew those not
noticed so far whose line of the output holds the text; with ``--compiled`` their kernels are
compiled, as users run them.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from .interpreted import compile_anew, interpret
from .mutants import Mutant, drawn, mutants_of
from .trials import UNNOTICED, Row, Trials, results

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "simdev/execution/engine/*.py",
    "simdev/execution/check/*.py",
    "simdev/execution/period.py",
    "simdev/oracle/heap.py",
    "simdev/oracle/peaks.py",
    "simdev/oracle/cluster.py",
    "simdev/oracle/placements/*.py",
    "simdev/oracle/splits/*.py",
    "simdev/nouns/memory.py",
    "simdev/report/measures/footprint.py",
)
# Folders and files of tests near the modules: a mutant runs the tests that reach its lines.
TESTS = (
    "engine",
    "check",
    "oracle",
    "memory",
    "report/test_period.py",
    "lowering/test_dispatches.py",
    "lowering/test_local_sgd.py",
    "lowering/test_sharing.py",
    "lowering/test_streams.py",
    "lowering/test_sync.py",
    "collectives/test_collective_groups.py",
    "collectives/test_collective_ops_seen.py",
    "collectives/test_collective_ops_slowdown.py",
    "collectives/test_collectives_judged.py",
    "calibrate/test_calibrate_periods.py",
    "schedules/test_schedules_times.py",
    "scenario/test_disturbances.py",
    "scenario/test_known_answers.py",
)


def paths() -> list[str]:
    """The modules, as paths from the root."""
    return [
        str(path.relative_to(ROOT)) for pattern in MODULES for path in sorted(ROOT.glob(pattern))
    ]


def digest() -> str:
    """A hash of the modules: results, and the lines that tests reach, count for this state only."""
    sources = b"".join((ROOT / path).read_bytes() for path in paths())
    return hashlib.sha256(sources).hexdigest()[:8]


def all_mutants() -> list[Mutant]:
    """All possible mutants, in the order of the modules."""
    return [
        mutant for path in paths() for mutant in mutants_of(path, (ROOT / path).read_text("utf-8"))
    ]


def is_due(mutant: Mutant, end: Row | None, again: str | None) -> bool:
    """Whether to run a mutant: without ``again``, if it has no result; else if no test noticed it
    and its key contains ``again``.
    """
    if again is None or end is None:
        return again is None and end is None
    return end["end"] in UNNOTICED and again in mutant.key


def main() -> int:
    """Runs the mutants that have no result yet, and prints the score."""
    parser = argparse.ArgumentParser("python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (0)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--again", metavar="TEXT", help="those not noticed that hold this text")
    parser.add_argument("--compiled", action="store_true", help="kernels compiled, seconds each")
    parser.add_argument("--most", type=float, default=30.0, help="CPU seconds of tests a mutant")
    args = parser.parse_args()
    mutants = drawn(all_mutants(), args.count, args.seed)
    folder = args.folder / digest()
    folder.mkdir(parents=True, exist_ok=True)
    (compile_anew if args.compiled else interpret)()
    for path in paths():
        import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    known = results(folder)
    chosen = [mutant for mutant in mutants if is_due(mutant, known.get(mutant.key), args.again)]
    trials = Trials(ROOT, folder, paths(), chosen, args.most)
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[trials])
    known = results(folder)
    ends = [known[mutant.key] for mutant in mutants if mutant.key in known]
    for end in ends:
        if end["end"] in UNNOTICED:
            print(end["end"], end["key"])
    counts = Counter(end["end"] for end in ends)
    noticed = len(ends) - sum(counts[name] for name in UNNOTICED)
    print(f"{noticed} of {len(ends)} noticed: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
