"""``python -m tests.attack --count 200000 --seed 1``: mutants by the thousand, and each that is
neither answered nor refused as it should be.

A mutant is known by its family, seed and number: the same command makes the same ones, and
``--begin`` goes on where another ended. A faulty one is written to a folder, with the fewest of its
changes that show the fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from .judge import Verdict, mutant_of, verdicts, warm
from .seeds import FAMILIES

MOST_CHANGES = 5


def kept(family: str, seed: int, fault: Verdict, folder: Path) -> Path:
    """Writes a faulty mutant, in its smallest form, to a new folder; returns the folder."""
    whole = mutant_of(family, seed, fault.number)
    for changes in range(1, MOST_CHANGES):
        smaller = mutant_of(family, seed, fault.number, changes)
        again = next(verdicts(family, seed, [fault.number], changes))
        if again.reason == fault.reason:
            whole = smaller
            break
    place = folder / f"{family}-{seed}-{fault.number}"
    place.mkdir(parents=True, exist_ok=True)
    whole.write(place)
    lines = [f"{family}, seed {seed}, number {fault.number}, made of {whole.seed}", fault.reason]
    lines += [f"simdev {' '.join(words)}" for words in whole.commands]
    (place / "fault.txt").write_text(
        "\n".join([*lines, "", f"at: {fault.command}", fault.printed]), "utf-8", "backslashreplace"
    )
    return place


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 where a mutant is faulty."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="mutants, of all families")
    parser.add_argument("--begin", type=int, default=0, help="the number of the first (default 0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="default: all")
    parser.add_argument("--keep", type=Path, default=Path("mutants"), help="folder of faulty ones")
    args = parser.parse_args(arguments)
    families, wrong, answered = args.family or list(FAMILIES), 0, 0
    share = args.count // len(families)
    for family in families:
        for problem in warm(family):
            print(problem)
        numbers = range(args.begin, args.begin + share)
        every = verdicts(family, args.seed, numbers)
        for verdict in tqdm(every, family, share, mininterval=2, file=sys.stderr):
            answered += verdict.code in (0, 1)
            if verdict.reason:
                wrong += 1
                place = kept(family, args.seed, verdict, args.keep)
                tqdm.write(f"{place}: {verdict.reason}", file=sys.stdout)
    made = share * len(families)
    print(f"{made:,} mutants, {answered:,} of them answered, {wrong:,} faulty")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
