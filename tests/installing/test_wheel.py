"""What a wheel holds: the package with its presets and pages, and the examples."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
LICENSED = re.compile(r'"source": "([^"]+)\((?:Apache|MIT|BSD)')
FOLDERS = ("scenarios", "profiles", "notebooks")


def files(folder: Path) -> set[str]:
    """The files in a folder by their paths there, without what a run or an editor leaves."""
    return {path.relative_to(folder).as_posix() for path in _walked(folder)}


def _walked(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.name.startswith((".", "__")):
            yield from _walked(path)
        elif path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc"):
            yield path


def test_a_wheel_holds_every_module_and_every_example(tmp_path: Path) -> None:
    """Built into a folder, which the wheel is a zip of."""
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    built = files(tmp_path / "simdev")
    assert files(ROOT / "simdev") <= built
    examples = {f"examples/{name}/{path}" for name in FOLDERS for path in files(ROOT / name)}
    assert built - files(ROOT / "simdev") == examples
    assert len(examples) > 100

    where = "from simdev.files.examples import *; print(examples_folder(), *scenario_names())"
    printed = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    folder, *names = printed.stdout.split()
    assert Path(folder) == tmp_path / "simdev" / "examples"
    assert names == sorted(path.stem for path in (ROOT / "scenarios").glob("*.json"))


def test_a_wheel_carries_the_licences_of_its_data(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        texts = {
            name.partition(".dist-info/licenses/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/licenses/" in name
        }
    assert texts == {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in (ROOT / "LICENSE", *(ROOT / "licenses").iterdir())
    }
    listed = texts["licenses/README.md"]
    assert all(f"`{Path(name).name}`" in listed for name in texts if name != "licenses/README.md")


def test_each_source_under_a_licence_is_listed() -> None:
    rows = (ROOT / "licenses" / "README.md").read_text().splitlines()
    presets = [path.read_text() for path in (ROOT / "simdev/files/presets").rglob("*.json")]
    sources = {source for text in presets for source in LICENSED.findall(text)}
    assert len(sources) > 10
    known = {"aiconfigurator", "DeepBench", "vidur", "taccl", "NeuSight", "torchtitan"}
    known |= {"pytorch/ao", "AI-benchmarking-guide"}
    assert all(any(name in source for name in known) for source in sources), sources
    assert all(any(name in row for row in rows) for name in known)


def test_few_packages_are_needed() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert len(settings["options"]["install_requires"].split("\n")[1:]) <= 8


def test_the_help_loads_nothing_heavy() -> None:
    """So that it takes a fraction of a second."""
    loaded = (
        "import sys; from simdev.commands import parser; parser().format_help(); "
        "print(*sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", loaded], cwd=ROOT, check=True, capture_output=True, text=True
    )
    heavy = {"matplotlib", "networkx", "numba", "pandas", "pydantic", "scipy", "shtab", "simpy"}
    assert not (heavy | {"torch", "tqdm"}) & set(printed.stdout.split())
