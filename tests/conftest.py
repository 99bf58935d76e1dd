"""Hypothesis profile, and four tiny worlds. Times are ps, sizes bytes, 1 byte takes 1 ps."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from examples import draw_few
from simdev.nouns.semantics import registry
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import World

# For the import of benchmarks: plain `pytest` only puts tests/ on the path.
sys.path.append(str(Path(__file__).resolve().parent.parent))

# Modules of tests keep a million objects (torch, numba): a full collection takes half a second, and
# by default there are dozens in a run. Pytest collects all at its end.
gc.set_threshold(50_000, 10, 10)

# The test files that keep a process busy for five seconds or more, the longest first. They run
# before the others, so that no process is left alone with a long file at the end.
LONG = (
    "documents/test_docs.py",
    "search/test_placers.py",
    "scenario/test_door.py",
    "search/test_placers_training.py",
    "search/test_search_exhaustive.py",
    "lowering/test_placed_or_configured.py",
    "lowering/test_partition_laws.py",
    "search/test_plan_bounds.py",
    "cli/test_capture_command.py",
    "ranks/test_capture_doors.py",
    "oracle/test_split_session.py",
    "engine/test_engines.py",
    "serve/test_serve_heavy.py",
    "serve/test_serve_http.py",
    "sweep/test_sweep_parallel.py",
    "sweep/test_sweep_ends.py",
    "search/test_search_starts.py",
    "search/test_search.py",
    "browser/test_pages.py",
    "browser/test_ink.py",
    "report/test_whatif.py",
    "ranks/test_llama.py",
    "search/test_search_colocrl.py",
    "ranks/test_loops.py",
    "search/test_search_cli.py",
    "measure/test_any_models.py",
    "ranks/test_pipelines.py",
)


def turn(item: pytest.Item) -> int:
    """The sort key of a test: the place of its file in LONG, or the end for all other files."""
    return LONG.index(name) if (name := "/".join(item.path.parts[-2:])) in LONG else len(LONG)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=turn)
    if config.option.markexpr == "not slow":
        draw_few(items)


settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def kinds_as_before() -> Iterator[None]:
    """Removes the kinds that a test registers after it, so that later tests do not see them."""
    kinds, traits = dict(registry._KINDS), dict(registry._TRAITS)
    yield
    if kinds != registry._KINDS:
        registry._KINDS, registry._TRAITS = kinds, traits
        registry._semantics_of.cache_clear()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def chain() -> World:
    """One device: a(1) -> b(2) -> c(3)."""
    ops = [op("a", 1), op("b", 2, "a"), op("c", 3, "b")]
    return World.of(ops, joined(1, prefix="gpu:"), [0, 0, 0])


@pytest.fixture
def diamond() -> World:
    r"""One device.

    ::

             b(2)
            /    \
        a(1)      d(1)
            \    /
             c(3)
    """
    ops = [op("a", 1), op("b", 2, "a"), op("c", 3, "a"), op("d", 1, "b", "c")]
    return World.of(ops, joined(1, prefix="gpu:"), [0, 0, 0, 0])


@pytest.fixture
def two_gpus() -> World:
    """Two GPUs and one link: a(1) sends 2 bytes to c, b(1) 1 byte to c.

    ::

        gpu:0   a(1) b(1)
                  \\2  \\1
        gpu:1      ----- c(2)
    """
    ops = [op("a", 1, size=2), op("b", 1, size=1), op("c", 2, "a", "b")]
    return World.of(ops, joined(2, "device", prefix="gpu:"), [0, 0, 1])


@pytest.fixture
def pipeline() -> World:
    """Four stages on four GPUs, two microbatches, forward(1) and backward(2), 1 byte between
    stages.

    ::

        gpu:0  f00 f01 .................... b00 b01
        gpu:1      f10 f11 ............ b10 b11
        gpu:2          f20 f21 .... b20 b21
        gpu:3              f30 f31 b30 b31
    """
    ops, placement = [], []
    for stage in range(4):
        for batch in range(2):
            ops.append(
                op(f"f{stage}{batch}", 1, *([f"f{stage - 1}{batch}"] if stage else []), size=1)
            )
            placement.append(stage)
    for stage in reversed(range(4)):
        for batch in range(2):
            before = f"b{stage + 1}{batch}" if stage < 3 else f"f3{batch}"
            ops.append(op(f"b{stage}{batch}", 2, before, size=1))
            placement.append(stage)
    return World.of(ops, joined(4, "link", prefix="gpu:"), placement)
