"""``simdev doctor``: whether this installation works: packages, extras, compiled kernels, the
machine, and a step on which both engines must agree.

A new check is a function, its row in LOOKS, and its part in UNSEEN; ``simdev profile doctor`` is
another program (``measure/doctor``).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import __version__
from ..ground import PACKAGE
from ..ground.errors import SimdevError, install_line
from ..ground.units import format_bytes
from .options import DONE, FAILED_CHECK, JSON_OPTION
from .outputs import json_text

HELP = "look for what is wrong with this installation"
DESCRIPTION = (
    "Tells versions, which extras are there and how to get the others, where compiled kernels are "
    "kept, what the machine has, and simulates a small step on every engine. It repairs nothing. "
    "Exits 3 where something is broken. (simdev profile doctor looks at measured profiles.)"
)
OPTIONS = (JSON_OPTION,)

SMOKE = "pipeline-1f1b"
"""The example that every engine simulates."""
_REQUIREMENT = re.compile(r"([\w.-]+)\s*>=\s*([\d.]+)")
_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")
# Extras for people who work on simdev itself (CONTRIBUTING.md).
_INTERNAL = ("dev", "docs")


@dataclass(frozen=True, slots=True)
class Package:
    """A requirement, and the installed version (None: not installed)."""

    name: str
    least: str
    version: str | None

    @property
    def is_right(self) -> bool:
        """Whether the package is installed and new enough."""
        return self.version is not None and _parts(self.version) >= _parts(self.least)

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.name} (missing)"
        return f"{self.name} {self.version}" + ("" if self.is_right else f" (needs {self.least})")


UNSEEN: dict[str, Any] = {
    "simdev": {},
    "python": {},
    "examples": None,
    "packages": {},
    "extras": {},
    "kernels": None,
    "machine": None,
    "gpus": [],
    "smoke": {"scenario": SMOKE, "step_ps": {}},
}
"""The values of parts of the findings whose check failed."""


@dataclass(slots=True)
class Findings:
    """The findings by part, with ``problems`` (broken) and ``notes`` (worth knowing)."""

    parts: dict[str, Any] = field(default_factory=lambda: dict(UNSEEN))
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    findings = Findings()
    for noun, look in LOOKS.items():
        try:
            look(findings)
        except Exception as error:  # a broken package may raise anything: it is the finding
            kind = "" if isinstance(error, SimdevError) else f"{type(error).__name__}: "
            findings.problems.append(f"{noun}: {kind}{error}")
    if args.json:
        ends = {"problems": findings.problems, "notes": findings.notes}
        print(json_text({**findings.parts, **ends, "ok": not findings.problems}))
    else:
        print("\n".join(_lines(findings)))
    return FAILED_CHECK if findings.problems else DONE


def _parts(version: str) -> tuple[int, ...]:
    """The numbers of a release: (2, 13, 1) of "2.13.1rc1+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def _versions(findings: Findings) -> None:
    findings.parts["simdev"] = {"version": __version__, "folder": str(PACKAGE)}
    findings.parts["python"] = {
        "version": platform.python_version(),
        "program": sys.executable,
        "system": platform.platform(),
    }
    with suppress(metadata.PackageNotFoundError):
        installed = metadata.version("simdev")
        if installed != __version__:
            findings.notes.append(f"pip knows simdev {installed}, and {PACKAGE} is {__version__}")


def _examples(findings: Findings) -> None:
    from ..files.examples import examples_folder, scenario_names

    folder, count = str(examples_folder()), len(scenario_names())
    findings.parts["examples"] = {"folder": folder, "scenarios": count}


def _packages(findings: Findings) -> None:
    """Looks at the requirements of the installation, those of each extra apart."""
    try:
        requirements = metadata.requires("simdev") or []
    except metadata.PackageNotFoundError:
        findings.notes.append("not installed, only on the path: nothing tells what simdev needs")
        requirements = []
    core: list[Package] = []
    extras: dict[str, list[Package]] = {}
    for requirement in requirements:
        name = _EXTRA.search(requirement)
        (extras.setdefault(name[1], []) if name else core).append(_package(requirement))
    findings.parts["packages"] = {each.name: each.version for each in core}
    findings.problems += [f"package {each}" for each in core if not each.is_right]
    findings.parts["extras"] = {
        extra: {
            "installed": all(package.is_right for package in packages),
            "packages": {package.name: package.version for package in packages},
            "install": install_line(extra),
        }
        for extra, packages in extras.items()
        if extra not in _INTERNAL
    }


def _package(requirement: str) -> Package:
    match = _REQUIREMENT.match(requirement)
    name, least = match.groups() if match else (re.split(r"[^\w.-]", requirement)[0], "0")
    try:
        return Package(name, least, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Package(name, least, None)


def _kernels(findings: Findings) -> None:
    """Looks at the folder of Numba's machine code, and whether it holds any."""
    if find_spec("numba") is None:
        findings.notes.append(
            f"without numba large steps, searches and plans take far longer: {install_line('fast')}"
        )
        return
    from ..ground.jit import cache_folder

    folder = cache_folder()
    compiled = list(Path(folder).rglob("*.nbc")) if folder else []
    findings.parts["kernels"] = {"folder": folder, "compiled": len(compiled)}
    if folder is None:
        reason = "no folder can be written, so each process compiles them anew"
        findings.notes.append(f"kernels: {reason}: set NUMBA_CACHE_DIR")


def _machine(findings: Findings) -> None:
    from ..nouns.scale import memory_bytes

    # The cores that this process may use: in a container fewer than the machine's.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    findings.parts["machine"] = {"cores": usable, "memory_bytes": memory_bytes()}


def _gpus(findings: Findings) -> None:
    """Looks for GPUs, by the names that the driver lists and that PyTorch sees."""
    names: list[str] = []
    findings.parts["gpus"] = names
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
        names += filter(None, map(str.strip, listed.stdout.splitlines()))
    if find_spec("torch") is None:
        return
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if names and not seen:
        findings.notes.append("GPUs: the driver lists some, and PyTorch sees none")
    # In some containers the driver's program is missing, and PyTorch still reaches the GPUs.
    names += [torch.cuda.get_device_name(i) for i in range(0 if names else seen)]


def _smoke(findings: Findings) -> None:
    """Simulates the example by every installed engine, with the checker: all must agree."""
    steps: dict[str, int] = {}
    findings.parts["smoke"] = {"scenario": SMOKE, "step_ps": steps}
    engines = ("simpy", "compiled") if find_spec("numba") is not None else ("simpy",)
    for engine in engines:
        steps[engine] = _step(engine)
    if len(set(steps.values())) > 1:
        answers = ", ".join(f"{engine} {step:,} ps" for engine, step in steps.items())
        raise SimdevError(f"the engines differ: {answers}")


def _step(engine: str) -> int:
    """The step time of the example in ps. Raises SimdevError."""
    from dataclasses import replace

    from ..execution.check import check
    from ..execution.scenario import execute, load_scenario

    trace = execute(replace(load_scenario(SMOKE), engine=engine)).trace
    violations = check(trace.task_graph, trace)
    if violations:
        raise SimdevError(f"the checker objects to {engine}: {violations[0]}")
    return trace.end_ps


def _lines(findings: Findings) -> Iterator[str]:
    parts = findings.parts
    simdev, python = parts["simdev"], parts["python"]
    if simdev:
        yield f"simdev {simdev['version']} in {simdev['folder']}"
    if python:
        yield f"Python {python['version']} ({python['program']}), {python['system']}"
    if parts["examples"]:
        count, folder = parts["examples"]["scenarios"], parts["examples"]["folder"]
        yield f"examples: {count} scenarios in {folder}"
    yield f"packages: {_named(parts['packages'])}"
    yield "extras:"
    width = max(map(len, parts["extras"]), default=0)
    for extra, state in parts["extras"].items():
        have = _named(state["packages"]) if state["installed"] else f"- ({state['install']})"
        yield f"  {extra:{width}}  {have}"
    yield from _machine_lines(parts)
    smoke = ", ".join(f"{engine} {step:,} ps" for engine, step in parts["smoke"]["step_ps"].items())
    yield f"smoke: {SMOKE}: {smoke or '-'}"
    yield from (f"note: {note}" for note in findings.notes)
    yield from (f"BROKEN: {problem}" for problem in findings.problems)
    if not findings.problems:
        yield "ok: nothing is broken"


def _machine_lines(parts: dict[str, Any]) -> Iterator[str]:
    kernels, machine = parts["kernels"], parts["machine"]
    if kernels:
        compiled = f"{kernels['compiled']} compiled" if kernels["compiled"] else "none compiled yet"
        yield f"kernels: {compiled}, in {kernels['folder'] or 'memory only'}"
    if machine:
        size = machine["memory_bytes"]
        memory = "unknown" if size is None else format_bytes(size)
        yield f"machine: {machine['cores']} cores, {memory} of memory"
    yield f"GPUs: {', '.join(parts['gpus']) or 'none'}"


def _named(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(missing)'}" for name, version in versions.items())


LOOKS = {
    "versions": _versions,
    "examples": _examples,
    "packages": _packages,
    "kernels": _kernels,
    "machine": _machine,
    "GPUs": _gpus,
    f"simulation of {SMOKE}": _smoke,
}
"""The checks of an installation, by the noun that their problems begin with."""
