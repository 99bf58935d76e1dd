"""Compiled code is kept where it can be, is fresh, and whoever waits at a terminal is told."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numba
import pytest
from numba.core import event

import simdev.ground.errors
import simdev.ground.jit

KERNEL = """
from readonly.ground.jit import jit

@jit
def twice(x):
    return {factor} * x
"""


def loaded(name: str, path: Path) -> ModuleType:
    """The module of a file, run anew."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Installation:
    """A package ``readonly`` with copies of jit.py and errors.py, and one kernel, in a folder that
    takes no folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root / "readonly"
        (self.package / "ground").mkdir(parents=True)
        (self.package / "execution" / "engine").mkdir(parents=True)
        for module in (simdev.ground, simdev.ground.jit, simdev.ground.errors):
            source = Path(str(module.__file__))
            (self.package / "ground" / source.name).write_text(source.read_text())
        self.write(2)
        # Not even root makes a folder where a file stands.
        (self.package / "__pycache__").touch()

    def write(self, factor: int) -> None:
        kernel = self.package / "execution" / "engine" / "kernel.py"
        kernel.write_text(KERNEL.format(factor=factor))

    def process(self) -> tuple[int, int]:
        """(twice 21, how many kernels came from disk) as in a fresh process."""
        known = list(event._registered["numba:compile"])
        ground, engine = self.package / "ground", self.package / "execution" / "engine"
        loaded("readonly.ground", ground / "__init__.py")
        loaded("readonly.ground.errors", ground / "errors.py")
        self.jit = loaded("readonly.ground.jit", ground / "jit.py")
        kernel = loaded("readonly.engine.kernel", engine / "kernel.py").twice
        try:
            return kernel(21), sum(kernel.stats.cache_hits.values())
        finally:
            event._registered["numba:compile"][:] = known


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Installation(tmp_path)
    for name in [name for name in sys.modules if name.startswith("readonly.")]:
        del sys.modules[name]


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.glob("**/kernels-*") if any(path.glob("**/*.nbc"))]


def test_readonly_installation_keeps_its_code_for_the_user(installation: Installation) -> None:
    assert installation.process() == (42, 0)
    assert installation.process() == (42, 1)
    assert len(kept(installation.root / "home" / "simdev")) == 1


def test_edited_source_runs_and_replaces_the_old_code(installation: Installation) -> None:
    installation.process()
    (old,) = kept(installation.root)
    installation.write(3)
    assert installation.process() == (63, 0)
    (new,) = kept(installation.root)
    assert new != old


def test_folder_of_numba_comes_first(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = installation.root / "given"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(given))
    assert installation.process() == (42, 0)
    assert installation.process() == (42, 1)
    assert len(kept(given)) == 1
    assert not kept(installation.root / "home")
    assert str(given) == numba.config.CACHE_DIR  # as it was


def test_writable_installation_keeps_it_itself(installation: Installation) -> None:
    (installation.package / "__pycache__").unlink()
    assert installation.process() == (42, 0)
    assert kept(installation.package / "__pycache__")


def test_nowhere_to_keep_it(installation: Installation) -> None:
    (installation.root / "home").touch()
    assert installation.process() == (42, 0)
    assert installation.process() == (42, 0)
    assert installation.jit.cache_folder() is None


def test_folder_that_goes_away_or_is_full_is_no_failure(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert installation.process() == (42, 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_terminal_is_told_once(
    installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
    stream: Callable[[], io.StringIO],
) -> None:
    said = stream()
    monkeypatch.setattr(sys, "stderr", said)
    installation.process()
    lines = said.getvalue().count("\n")
    assert lines == (1 if isinstance(said, Terminal) else 0)
    assert lines == 0 or str(installation.root / "home") in said.getvalue()
    installation.process()
    assert said.getvalue().count("\n") == lines  # from disk: nobody waits
