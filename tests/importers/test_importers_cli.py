"""``simdev import``: every format through the one door, refusals that write nothing, and the page
that tells of it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import sys
from pathlib import Path

import networkx as nx
import pytest

from foreign import COMP, alike, log, matrix, network, node, write
from imported import PROFILE, workload
from simdev import load_scenario
from simdev.commands import main
from simdev.files import read_cluster, read_collectives, read_profile
from simdev.formats import (
    EVERY_FORMAT,
    TORCH_FORMATS,
    import_file,
    open_source,
    recognise,
    table_of_formats,
)
from simdev.ground.errors import InputError
from simdev.report import run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "importers.md"
TRACE = {
    "traceEvents": [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::relu",
            "pid": 1,
            "tid": 1,
            "ts": 5,
            "dur": 2.5,
            "args": {"Input type": ["float"], "Input Dims": [[4, 4]], "Concrete Inputs": [""]},
        }
    ]
}

TEXTS = {
    "pipedream": PROFILE,
    "dnn-partitioning": json.dumps(workload()),
    "networkx": json.dumps(nx.node_link_data(network(), edges="links")),
    "nvidia-smi-topo": matrix(alike(2, "PHB"), ["0", "0"]),
    "nccl-tests": log(),
    "kineto": json.dumps(TRACE),
    "chakra": (
        '{"version": "1"}\n{"id": "3", "type": "COMP_NODE", "name": "a", "durationMicros": "7"}'
    ),
}


def saved(folder: Path, format: str) -> Path:
    """A file of a format under a name that says nothing of it."""
    path = folder / "file"
    if format in TEXTS:
        path.write_text(TEXTS[format])
    elif format == "onnx":
        onnx = pytest.importorskip("onnx")
        from onnx_nets import convolutional

        onnx.save(convolutional(), path, "protobuf")
    else:
        torch = pytest.importorskip("torch")
        program = torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(1, 3),))
        with open(path, "wb") as file:
            torch.export.save(program, file)
    return path


OPTIONS = {
    "nvidia-smi-topo": ["--device", "t4"],
    "kineto": ["--device", "cpu"],
    "onnx": ["--dim", "batch=2"],
}


@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_every_format_is_known_by_what_it_holds_and_keeps_its_origin(format, tmp_path, capsys):
    if format in TORCH_FORMATS:
        pytest.importorskip("torch")
    path = saved(tmp_path, format)
    assert recognise(open_source(path)) == format
    out = tmp_path / ("out.jsonl" if format == "kineto" else "out.json")
    command = ["import", str(path), "-o", str(out), *OPTIONS.get(format, [])]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{out}: ")
    assert printed.out.rstrip().endswith(f", {format}")
    first = out.read_bytes()
    value = json.loads(first.splitlines()[0] if format == "kineto" else first)
    written = value["header"]["provenance"] if format == "kineto" else value["provenance"]
    written = written.get("imported", written)
    assert (written["kind"], written["format"], written["file"]) == ("imported", format, "file")
    assert written["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert written["units"] == EVERY_FORMAT[format].units
    for note in written.get("notes", ()):
        assert note in printed.err
    # What was written is a file of its kind, and the same again.
    readers = {
        "nvidia-smi-topo": read_cluster,
        "nccl-tests": read_collectives,
        "kineto": read_profile,
    }
    readers.get(format, json_scenario)(out)
    assert main(command) == 0
    assert out.read_bytes() == first


def json_scenario(path: Path) -> None:
    value = json.loads(path.read_text())
    assert {"graph", "cluster", "strategy"} <= set(value)


def test_the_format_is_found_in_compressed_files_and_in_stdin(tmp_path, capsys, monkeypatch):
    path = tmp_path / "p.gz"
    path.write_bytes(gzip.compress(PROFILE.encode()))
    assert main(["import", str(path), "-o", str(tmp_path / "a.json")]) == 0
    written = json.loads((tmp_path / "a.json").read_text())["provenance"]
    assert (
        written["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    )  # of the file as it lies
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROFILE.encode())))
    assert main(["import", "-", "-o", str(tmp_path / "b.json")]) == 0
    written = json.loads((tmp_path / "b.json").read_text())["provenance"]
    assert (written["file"], written["format"]) == ("<stdin>", "pipedream")
    capsys.readouterr()


def test_the_machine_is_a_preset_a_file_or_what_is_asked_for(tmp_path, capsys):
    path = tmp_path / "net"
    path.write_text(TEXTS["networkx"])
    out = str(tmp_path / "s.json")
    assert main(["import", str(path), "-o", out, "--cluster", "dgx-1v"]) == 0
    assert load_scenario(out).cluster == read_cluster({"preset": "dgx-1v"})
    assert (
        main(
            [
                "import",
                str(path),
                "-o",
                out,
                "--devices",
                "3",
                "--device",
                "v100",
                "--bandwidth",
                "1 GB/s",
            ]
        )
        == 0
    )
    cluster = load_scenario(out).cluster
    assert [(d.kind, d.memory) for d in cluster.devices] == [("v100", 16 * 10**9)] * 3
    assert run(load_scenario(out)).step_ps == 3_012 * 10**6
    capsys.readouterr()


def test_a_profile_goes_with_the_scenario_by_its_path(tmp_path, capsys):
    rows = tmp_path / "profiles" / "p.jsonl"
    rows.parent.mkdir()
    rows.write_text(
        '{"v": 1, "op": "relu", "in": [[2]], "dt": ["float32"], "out": [[2]], "dev": '
        '"gpu", "phase": "fwd", '
        '"t_ns": {"p50": 5}}\n'
    )
    net = tmp_path / "net"
    net.write_text(TEXTS["networkx"])
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "s.json"
    assert main(["import", str(net), "-o", str(out), "--profile", str(rows)]) == 0
    assert load_scenario(out)
    capsys.readouterr()


REFUSED = [
    (["--format", "csv"], "format: must be one of pipedream, "),
    (["--format", "onnx"], "not an ONNX model"),
    (["--devices", "0"], "--devices: must be at least 1, got 0"),
    (
        ["--devices", "2"],
        "--bandwidth: missing; the file does not tell how the 2 devices are joined",
    ),
    (["--devices", "2", "--bandwidth", "fast"], "--bandwidth: must be a number or a string"),
    (
        ["--cluster", "dgx-1"],
        '--cluster: neither a preset nor a file: "dgx-1"; did you mean "dgx-1v"?',
    ),
    (["--cluster", "dgx-1v", "--devices", "2"], "--devices: --cluster tells it"),
    (["--cluster", "none.json"], "none.json: no such file"),
    (["--profile", "none.jsonl"], "none.jsonl: no such file"),
    (["--dim", "batch"], "--dim: is for files of onnx"),
    (["--optimizer", "adam"], "--optimizer: is for files of torch-export"),
    (["--warm-up", "1"], "--warm-up: is for files of kineto"),
    (["-o", "s.txt"], "s.txt: the name must end in .json or .json.gz"),
    (["-o", "s.jsonl"], "s.jsonl: the name must end in .json or .json.gz"),
    (["-o", "file"], "--output: file is the file to import too"),
    (["-o", "none/s.json"], "cannot write none/s.json: no such file or directory"),
]


@pytest.mark.parametrize(("options", "problem"), REFUSED)
def test_what_cannot_be_is_refused_in_one_message_and_writes_nothing(
    options, problem, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text(TEXTS["networkx"])
    command = ["import", "file", *([] if "-o" in options else ["-o", "s.json"]), *options]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert problem in printed.err
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_files_that_are_nothing_or_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("hello")
    Path("binary").write_bytes(bytes(range(256)))
    Path("empty").write_bytes(b"")
    for name, problem in (
        ("text", "text: of no format that simdev knows"),
        ("binary", "binary: of no format"),
        ("empty", "empty: of no format"),
        ("none", "none: no such file"),
        (".", ".: holds no traces"),
    ):
        assert main(["import", name, "-o", "s.json"]) == 2
        assert problem in capsys.readouterr().err
    Path("s.json").write_text(TEXTS["networkx"])
    assert main(["import", "s.json", "-o", "one.json"]) == 0
    assert re.search(r"\d op(s|), 1 device, networkx", capsys.readouterr().out)
    assert main(["import", "s.json", "-o", "s.json"]) == 2
    assert "is the file to import too" in capsys.readouterr().err
    assert main(["import", "text", "text", "-o", "o.json"]) == 2
    capsys.readouterr()


def test_only_traces_of_ranks_are_several_files(tmp_path, capsys, monkeypatch):
    pytest.importorskip("google.protobuf")
    monkeypatch.chdir(tmp_path)
    files = [write(tmp_path / f"t.{r}.et", node(0, COMP, us=r + 1)) for r in range(2)]
    assert main(["import", *files, "-o", "s.json", "--bandwidth", "1 GB/s"]) == 0
    assert "2 ops, 2 devices, chakra" in capsys.readouterr().out
    Path("net").write_text(TEXTS["networkx"])
    assert main(["import", files[0], "net", "-o", "o.json"]) == 2
    assert "net: " in capsys.readouterr().err


def test_a_trace_becomes_a_profile_or_a_step_and_torch_formats_have_their_own_door(
    tmp_path, capsys
):
    pytest.importorskip("torch")
    path = saved(tmp_path, "kineto")
    out = str(tmp_path / "p.jsonl")
    assert main(["import", str(path), "-o", str(tmp_path / "s.txt"), "--device", "cpu"]) == 2
    assert "must end in .json or .json.gz or .jsonl or .jsonl.gz" in capsys.readouterr().err
    assert main(["import", str(path), "-o", str(tmp_path / "s.json"), "--device", "cpu"]) == 0
    assert "1 op, 1 device, kineto" in capsys.readouterr().out
    assert load_scenario(tmp_path / "s.json").graph.ops[0].kind == "relu"
    assert main(["import", str(path), "-o", out, "--device", "cpu", "--devices", "2"]) == 2
    assert "--devices: a trace becomes a profile, which knows no machine" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"simdev\.measure reads it"):
        import_file(path)


def test_missing_packages_are_told_with_their_extra(tmp_path, monkeypatch):
    import importlib.util as util

    find = util.find_spec
    gone = {"onnx", "google.protobuf", "torch"}
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name in gone else find(name, *rest)
    )
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a\x12\x00")
    with pytest.raises(
        InputError,
        match=r'an ONNX model needs the package onnx: pip install "simdev\[onnx\]"',
    ):
        import_file(tmp_path / "m.onnx")
    file = write(tmp_path / "t.et", node(0, COMP))
    with pytest.raises(InputError, match=r"a Chakra trace needs the package google\.protobuf"):
        import_file(file)
    with pytest.raises(InputError, match="needs PyTorch"):
        from simdev.measure import import_program  # noqa: F401


def test_what_steers_a_terminal_is_told_as_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("w.json").write_text(
        TEXTS["dnn-partitioning"].replace('"name": "', '"name": "\\u001b[2J:', 1)
    )
    assert main(["import", "w.json", "-o", "s.json", "--format", "dnn-partitioning"]) == 0
    written = capsys.readouterr()
    assert r"\x1b[2J" in written.err
    assert "\x1b" not in written.err + written.out


@pytest.mark.parametrize("source", re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_python_of_the_page_runs(source, tmp_path, monkeypatch, capsys):
    if "torch" in source:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "importers.md", "exec"), {})
    after = PAGE.read_text().split(source)[1]
    assert capsys.readouterr().out.strip() == re.search(r"prints `([^`]+)`", after)[1]


def test_the_page_and_the_help_name_every_format(capsys):
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    written = capsys.readouterr().out
    for name, format in EVERY_FORMAT.items():
        assert f"| `{name}` |" in PAGE.read_text()
        line = re.escape(format.files), re.escape(format.becomes)
        assert re.search(rf"^  {name} +{line[0]}  +{line[1]}$", written, re.MULTILINE)
    assert max(map(len, table_of_formats().splitlines())) <= 90
