"""Puts the examples, which stand at the top of the repository, into the package of a wheel.

All else about the project is told in setup.cfg.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("scenarios", "profiles", "notebooks")
ENDINGS = (".json", ".json.gz", ".jsonl", ".txt", ".md", ".ipynb", ".py")


def files() -> Iterator[str]:
    """The paths of the examples; what a run or an editor left beside them is none."""
    for folder in FOLDERS:
        for place, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
            yield from (os.path.join(place, name) for name in sorted(names) if _ships(name))


def _ships(name: str) -> bool:
    return name.endswith(ENDINGS) and not name.startswith(".")


class BuildWithExamples(build_py):
    """Copies the examples beside the modules.

    An editable installation, which is a path to the clone, needs no copy: simdev looks there too
    (simdev/files/examples.py).
    """

    def run(self) -> None:
        """Copy the modules, then the examples."""
        super().run()
        if not self.editable_mode:
            for source, place in self._examples().items():
                self.mkpath(os.path.dirname(place))
                self.copy_file(source, place, preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """All that is built."""
        return [*super().get_outputs(include_bytecode), *self._examples().values()]

    def get_output_mapping(self) -> dict[str, str]:
        """Place in the build -> source."""
        examples = {} if self.editable_mode else self._examples()
        return super().get_output_mapping() | {place: source for source, place in examples.items()}

    def _examples(self) -> dict[str, str]:
        """Source -> place in the build."""
        inside = os.path.join(self.build_lib, "simdev", "examples")
        return {source: os.path.join(inside, source) for source in files()}


setup(cmdclass={"build_py": BuildWithExamples})
