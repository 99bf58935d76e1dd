"""How many small faults of the engines, the oracle, the checker and the memory the tests notice.

    python -m tests.mutation --count 300 --seed 0

Prints the score and the mutants that no test noticed. Results are kept in ``--folder``, and a later
call goes on from there. ``--only TEXT`` runs anew the drawn mutants whose line of the output holds
the text; with ``--compiled`` their kernels are compiled, as users run them.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from .interpreted import compile_anew, interpret
from .mutants import Mutant, drawn, mutants_of
from .trials import Trials, results

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
# Folders and files near the modules: a mutant runs those of their tests that come by its lines.
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
    "calibrate/test_calibrate_periods.py",
    "scenario/test_known_answers.py",
)


def paths() -> list[str]:
    """The modules, as paths from the root."""
    return [
        str(path.relative_to(ROOT)) for pattern in MODULES for path in sorted(ROOT.glob(pattern))
    ]


def all_mutants() -> list[Mutant]:
    """Every fault that can be made, in the order of the modules."""
    return [
        mutant for path in paths() for mutant in mutants_of(path, (ROOT / path).read_text("utf-8"))
    ]


def main() -> int:
    """Run the mutants that have no result yet, and print the score."""
    parser = argparse.ArgumentParser("python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (0)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--only", help="those whose line holds this text, anew")
    parser.add_argument("--compiled", action="store_true", help="kernels compiled, seconds each")
    parser.add_argument("--most", type=float, default=30.0, help="CPU seconds of tests a mutant")
    args = parser.parse_args()
    mutants = drawn(all_mutants(), args.count, args.seed)
    if args.only:
        mutants = [mutant for mutant in mutants if args.only in mutant.key]
    args.folder.mkdir(parents=True, exist_ok=True)
    (compile_anew if args.compiled else interpret)()
    for path in paths():
        import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    known = {} if args.only else results(args.folder)
    unknown = [mutant for mutant in mutants if mutant.key not in known]
    trials = Trials(ROOT, args.folder, paths(), unknown, args.most)
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[trials])
    known = results(args.folder)
    ends = [known[mutant.key] for mutant in mutants if mutant.key in known]
    for end in ends:
        if end["end"] in ("survived", "unreached"):
            print(end["end"], end["key"])
    counts = Counter(end["end"] for end in ends)
    noticed = len(ends) - counts["survived"] - counts["unreached"]
    print(f"{noticed} of {len(ends)} noticed: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
