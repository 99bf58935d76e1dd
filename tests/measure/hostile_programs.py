"""Archives of torch.export.save that were tampered with, and a program that imports them.

If read as PyTorch reads them, each would run code (which makes a file named ``ran``), exhaust the
memory, or raise an obscure error.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GRAPH = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLE = "data/sample_inputs/model.pt"

Entries = dict[str, bytes]


def entries_of(path: Path) -> Entries:
    """The entries of a saved program, by name without the top folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def packed(entries: Entries, method: int = zipfile.ZIP_STORED, root: str = "net/") -> bytes:
    """The bytes of an archive with these entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(root + name, data)
    return file.getvalue()


def changed(entries: Entries, name: str, change: Callable[[Any], object]) -> bytes:
    """An archive with the JSON of one entry changed."""
    value = json.loads(entries[name])
    change(value)
    return packed(entries | {name: json.dumps(value).encode()})


class Evil:
    """An object that makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> object:
        return open, (self.marker, "w")


def hostile(entries: Entries, marker: Path) -> Iterator[tuple[str, bytes]]:
    """Hostile archives: (what is wrong, bytes)."""
    import torch

    saved, raw = io.BytesIO(), pickle.dumps(Evil(marker), protocol=2)
    torch.save(Evil(marker), saved)
    bad = saved.getvalue()
    for name in ("data/weights/model.pt", "data/constants/model.pt", "data/weights/weights.pt"):
        yield f"pickle in {name}", packed(entries | {name: bad})
    yield "pickle as sample inputs", packed(entries | {SAMPLE: bad})
    yield "bare pickle as sample inputs", packed(entries | {SAMPLE: raw})
    for method in ("Weights", "WEIGHTS"):
        yield f"folder {method}", packed(entries | {f"data/{method}/model.pt": bad})
    yield "upper case", packed({name.upper(): data for name, data in entries.items()})
    yield "upper-case sample", packed(entries | {SAMPLE.upper(): bad})
    for prefix in ("custom_obj_0", "opaque_obj_0", "tensor_0"):
        yield f"constant {prefix}", with_payload(entries, CONSTANTS, "data/constants/", prefix, raw)
    yield "pickled weight", with_payload(entries, WEIGHTS, "data/weights/", "weight_0", bad)
    for name in (GRAPH, SAMPLE, WEIGHTS, "archive_format"):
        yield f"{name} twice", twice(entries, name, bad)
    for name in ("../../ran", "/tmp/ran", "data/weights/../../ran", "data/aotinductor/model/a.so"):
        yield f"entry {name}", packed(entries | {name: bad})
    yield "second program", packed(entries | {"models/other.json": entries[GRAPH]})
    yield from codes(entries, marker)
    yield from bombs(entries)
    yield from liars(entries)


def with_payload(entries: Entries, config: str, folder: str, name: str, data: bytes) -> bytes:
    entry = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}
    text = json.dumps({"config": {"c": entry}}).encode()
    return packed(entries | {config: text, folder + name: data})


def twice(entries: Entries, name: str, data: bytes) -> bytes:
    file = io.BytesIO(packed(entries))
    with zipfile.ZipFile(file, "a") as archive:
        archive._didModify = True
        archive.NameToInfo.clear()  # Python warns of it otherwise
        archive.writestr(f"net/{name}", data)
    return file.getvalue()


def codes(entries: Entries, marker: Path) -> Iterator[tuple[str, bytes]]:
    """Archives with code in places that PyTorch passes to eval or exec."""
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"

    def sizes(value: Any) -> None:
        for meta in value["graph_module"]["graph"]["tensor_values"].values():
            meta["sizes"] = [{"as_expr": {"expr_str": code, "hint": None}}] * len(meta["sizes"])

    def guards(value: Any) -> None:
        value["guards_code"] = [code]
        node = value["graph_module"]["graph"]["nodes"][0]
        node["inputs"][0]["name"] = f"x={code}"

    def target(name: str) -> Callable[[Any], None]:
        def change(value: Any) -> None:
            node = value["graph_module"]["graph"]["nodes"][0]
            arg = {"name": "filename", "arg": {"as_string": str(marker)}, "kind": 1}
            node |= {"target": name, "inputs": [arg]}

        return change

    yield "code as size", changed(entries, GRAPH, sizes)
    yield "code as guard", changed(entries, GRAPH, guards)
    for name in (
        "torch.hub.os.mkdir", "_operator.__builtins__.open", "torch.ops.aten.save.default",
        "torch.ops.load_library", "torch.ops.aten.from_file.default", "math.__loader__.load_module",
        "torch.ops.aten.__class__.mro", "#evil:op",
    ):  # fmt: skip
        yield f"calls {name}", changed(entries, GRAPH, target(name))


def bombs(entries: Entries) -> Iterator[tuple[str, bytes]]:
    """Small archives that expand to a lot of data."""
    zeros = bytes(64 * 2**20)
    deflated = zipfile.ZIP_DEFLATED
    for name in (GRAPH, WEIGHTS, "archive_format", SAMPLE):
        yield f"bomb {name}", packed(entries | {name: zeros}, deflated)
    inner = packed({"data.pkl": zeros, "data/0": zeros}, deflated, "archive/")
    yield "bomb in bomb", packed(entries | {SAMPLE: inner}, deflated)
    del zeros
    deep = b"[" * 10**6 + b"]" * 10**6
    yield "deep JSON", packed(entries | {GRAPH: deep}, deflated)
    yield "long number", packed(entries | {GRAPH: b'{"schema_version": ' + b"9" * 10**7 + b"}"})
    whole = packed({"archive_format": b"pt2"})
    table = whole[whole.index(b"PK\x01\x02") : whole.index(b"PK\x05\x06")]
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, 400_000 * len(table), 0, 0)
    yield "400,000 entries", table * 400_000 + end

    def huge(value: Any) -> None:
        for meta in value["graph_module"]["graph"]["tensor_values"].values():
            meta["sizes"] = [{"as_int": 10**30}] * len(meta["sizes"])

    def parts(value: Any) -> None:
        graph = value["graph_module"]["graph"]
        graph["tensor_values"]["x"]["sizes"][0] = {"as_int": 2**50}
        arg = {"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}
        graph["nodes"][0] |= {"target": "torch.ops.aten.unbind.int", "inputs": [arg]}

    yield "size of 10^30", changed(entries, GRAPH, huge)
    yield "a tensor in 2^50 parts", changed(entries, GRAPH, parts)


def liars(entries: Entries) -> Iterator[tuple[str, bytes]]:
    """Archives whose own tables are wrong."""
    whole = packed(entries)
    end = whole.rindex(b"PK\x05\x06")
    table = struct.unpack_from("<L", whole, end + 16)[0]
    graph = whole.index(b"PK\x01\x02", whole.index(f"net/{GRAPH}".encode(), table) - 46)

    def at(place: int, form: str, value: int) -> bytes:
        data = bytearray(whole)
        struct.pack_into(form, data, place, value)
        return bytes(data)

    yield "size too small", at(graph + 24, "<L", 10)
    yield "size too large", at(graph + 24, "<L", 2**32 - 2)
    yield "packed size too large", at(graph + 20, "<L", 2**32 - 2)
    yield "encrypted", at(graph + 8, "<H", 1)
    yield "strange method", at(graph + 10, "<H", 99)
    yield "another disk", at(graph + 34, "<H", 7)
    yield "symbolic link", at(graph + 38, "<L", 0o120777 << 16)
    yield "zip64 without sizes", at(graph + 24, "<L", 2**32 - 1)
    yield "offset beyond", at(graph + 42, "<L", 2**31)
    yield "table of 4 GiB", at(end + 12, "<L", 2**32 - 2)
    yield "table elsewhere", at(end + 16, "<L", 2**31)
    yield "cut", whole[: len(whole) // 2]
    yield "cut within the table", whole[: table + 100]


def main(folder: str) -> None:
    """Imports every archive of a folder; prints a line of JSON for each: name, exit code, stderr,
    and the MiB of memory beyond those of the first archive, which is sound.
    """
    from contextlib import redirect_stderr, redirect_stdout

    from simdev.commands import main as simdev

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    def called(path: Path) -> tuple[int, str]:
        told = io.StringIO()
        with redirect_stderr(told), redirect_stdout(io.StringIO()):
            code = simdev(["import", str(path), "-o", f"{path}.json", "--device", "v100"])
        return code, told.getvalue()

    before = None
    for path in sorted(Path(folder).glob("*.pt2")):
        code, told = called(path)
        before = peak() if before is None else before
        print(json.dumps([path.stem, code, told, peak() - before]))


if __name__ == "__main__":
    main(sys.argv[1])
