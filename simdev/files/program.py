"""The archive of a program that torch.export saved: the program's calls and the shapes of its
tensors.

Values of weights and the pickled example inputs are never read: the calls hold all shapes. Format:
torch/_export/serde/schema.py of PyTorch 2.7 and later, version 8. ``measure/exported.py`` makes a
graph of the program. A new version of the format begins with the TypedDicts here.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pickletools import genops
from typing import Any, BinaryIO, Literal, Required

from pydantic import ConfigDict
from typing_extensions import TypedDict

from ..ground.errors import InputError, prefixed, refuse
from ..ground.units import MAX_BYTES
from .reading import PathLike, parse_json, shown, text_of, unpacked
from .shape import Extent, Format, plain

# Safe reading of zip archives: only entries whose names are known, each once, of bounded size.
# Nothing is written to disk, and only the entries that are needed are unpacked.

# In memory an entry of the table takes 20 times its size in the file.
MAX_TABLE = 16 * 2**20
_ENCRYPTED, _LINK = 0x1, 0o120000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _TableBounded:
    """A file that refuses to read more at once than a table of entries may take."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        if size > MAX_TABLE:
            raise InputError(f"damaged archive: its table is larger than {MAX_TABLE >> 20} MiB")
        # zipfile reads without a size only for the comment at the end, which is short.
        return self._read(size if size >= 0 else MAX_TABLE)


@contextmanager
def opened_archive(source: PathLike | BinaryIO) -> Iterator[zipfile.ZipFile]:
    """An archive whose table of entries is bounded. Raises InputError where it is damaged, also
    when the block first notices that.
    """
    try:
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file, opened_archive(file) as archive:
                yield archive
        else:
            source.seek(0)
            with zipfile.ZipFile(_TableBounded(source)) as archive:
                yield archive
    except UnicodeDecodeError:
        raise InputError("damaged archive: a name in its table is no text") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"damaged archive: {error}") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None


def known_entries(
    archive: zipfile.ZipFile, known: Callable[[str], bool], whose: str
) -> Mapping[str, zipfile.ZipInfo]:
    """The entries of an archive by name. Raises InputError where an entry is unknown, is there
    twice, or is no plain file. ``whose`` names the kind of archive in messages.
    """
    entries: dict[str, zipfile.ZipInfo] = {}
    problems = []
    for entry in archive.infolist():
        name = entry.orig_filename
        if not known(name):
            problems.append(f"{name}: no entry of {whose}")
        elif name in entries:
            problems.append(f"{name}: stands twice in the archive")
        elif entry.flag_bits & _ENCRYPTED:
            problems.append(f"{name}: is encrypted")
        elif entry.compress_type not in _METHODS:
            problems.append(f"{name}: packed by a method that is neither stored nor deflated")
        elif entry.external_attr >> 16 & 0o170000 == _LINK:
            problems.append(f"{name}: is a symbolic link")
        elif not entry.compress_type and entry.compress_size != entry.file_size:
            problems.append(f"{name}: is stored, and has two sizes")
        elif entry.volume:
            problems.append(f"{name}: lies on another disk of a divided archive")
        entries[name] = entry
    refuse(problems)
    return entries


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry. Raises InputError where they are too many, or not as many as the
    archive declares.
    """
    size = min(entry.compress_size, archive.start_dir)
    with archive.open(entry) as packed, prefixed(f"{entry.orig_filename}: "):
        data = unpacked(packed.read, size)
        if len(data) != entry.file_size:
            raise InputError(f"holds {len(data)} bytes, not {entry.file_size} as the archive says")
    return data


SAVED = "torch.export.save"
_GRAPH, _WEIGHTS, _CONSTANTS = (
    "models/model.json",
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)
_KNOWN = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
    r"|models/model\.json|data/sample_inputs/model\.pt|extra/.+"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/((tensor|custom_obj|opaque_obj)_\d+|model_constants_config\.json)"
)


_ByKind = dict[str, Any]  # an object with a single key, which names its kind


class _Device(TypedDict, total=False):
    type: Required[str]
    index: int | None


class _Expression(TypedDict):
    """A size that varies; ``hint`` is the size in the example inputs."""

    hint: dict[str, Any] | None


class _Size(TypedDict, total=False):
    as_int: Extent
    as_expr: _Expression


class TensorMeta(TypedDict):
    """The dtype, sizes and strides of a tensor, without its values."""

    dtype: int
    sizes: list[_Size]
    strides: list[_Size]
    requires_grad: bool
    device: _Device
    layout: Literal[7]


class _Argument(TypedDict):
    name: str
    arg: _ByKind


class Node(TypedDict):
    """A call of an operator. The single key of each argument and output names its kind."""

    target: str
    inputs: list[_Argument]
    outputs: list[_ByKind]
    metadata: dict[str, str]


class Graph(TypedDict):
    """Calls in their order, and the shapes and dtypes of their values."""

    inputs: list[_ByKind]
    outputs: list[_ByKind]
    nodes: list[Node]
    tensor_values: dict[str, TensorMeta]
    sym_int_values: dict[str, _Size]


class _Signature(TypedDict):
    input_specs: list[dict[str, dict[str, Any]]]
    output_specs: list[dict[str, dict[str, Any]]]


class _Module(TypedDict):
    fqn: str


class _GraphModule(TypedDict):
    graph: Graph
    signature: _Signature
    module_call_graph: list[_Module]


class _Version(TypedDict):
    major: Literal[8]


class _Program(TypedDict):
    schema_version: _Version
    graph_module: _GraphModule
    range_constraints: dict[str, Any]


class _Payload(TypedDict):
    path_name: str
    is_param: bool
    use_pickle: bool
    tensor_meta: TensorMeta | None


class _Payloads(TypedDict):
    config: dict[str, _Payload]


MAX_PICKLE = 2**20
_PLAIN = re.compile(
    r"|collections OrderedDict|torch (\w+Storage|Size|device|\w*float\w*|bfloat16|u?int\d+|bool)"
    r"|torch\._utils _rebuild_(tensor_v2|parameter|meta_tensor_no_storage)"
    r"|torch\.storage UntypedStorage|torch\.serialization _get_layout"
)
"""Names that a pickle of tensors may call; it also matches the empty name."""
_BY_STACK = frozenset({"STACK_GLOBAL", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"})
"""Instructions of pickles that call an object from the stack, which no instruction names."""
_FOREIGN = ConfigDict(strict=True, extra="ignore")
_PROGRAM = Format(_Program, prefix=f"{_GRAPH}: ", config=_FOREIGN)
_INNER = Format(Graph, config=_FOREIGN)
_STATE = Format(_Payloads, prefix=f"{_WEIGHTS}: ", config=_FOREIGN)
_OTHER = Format(_Payloads, prefix=f"{_CONSTANTS}: ", config=_FOREIGN)


@dataclass(frozen=True)
class SavedProgram:
    """The program that an archive describes: its calls, the roles of its inputs and outputs, the
    names of its modules in their order, and its parameters, buffers and constants by name.

    ``varies``: whether sizes of its inputs may vary; the sizes here are then the example inputs'.
    """

    graph: Graph
    signature: _Signature
    modules: tuple[str, ...]
    state: Mapping[str, _Payload]
    constants: Mapping[str, _Payload]
    varies: bool


def read_program(source: PathLike | BinaryIO) -> SavedProgram:
    """The program of a .pt2 file. Nothing of it is run or unpickled. Raises InputError."""
    with opened_archive(source) as archive:
        names = archive.namelist()
        root = names[0].partition("/")[0] + "/" if names else ""
        if not {root + "archive_format", root + _GRAPH} <= set(names):
            raise InputError(f"not an archive of {SAVED} (of PyTorch 2.7 or later)")

        def known(name: str) -> bool:
            return name.startswith(root) and bool(_KNOWN.fullmatch(name[len(root) :]))

        entries = known_entries(archive, known, SAVED)

        def read(name: str) -> bytes:
            if root + name not in entries:
                raise InputError(f"{name}: missing")
            return read_entry(archive, entries[root + name])

        if (read("archive_format"), read("archive_version")) != (b"pt2", b"0"):
            raise InputError(
                "archive_version: must be 0 of the format pt2, which this simdev reads"
            )
        state = _payloads(_STATE, _WEIGHTS, read)
        constants = _payloads(_OTHER, _CONSTANTS, read)
        _refuse_objects(read("data/sample_inputs/model.pt"))
        program = _PROGRAM.validated(_json(_GRAPH, read))
    module, ranges = program["graph_module"], program["range_constraints"]
    modules = tuple(entry["fqn"] for entry in module["module_call_graph"])
    return SavedProgram(
        module["graph"], module["signature"], modules, state, constants, bool(ranges)
    )


def _json(name: str, read: Callable[[str], bytes]) -> Any:
    data = read(name)
    with prefixed(f"{name}: "):
        return plain(parse_json(text_of(data, name)))


def _payloads(format: Format, name: str, read: Callable[[str], bytes]) -> Mapping[str, _Payload]:
    """Parameters, buffers or constants by name. Raises InputError where one is pickled."""
    payloads: dict[str, _Payload] = format.validated(_json(name, read))["config"]
    refuse(
        f"{key}: a pickled object, which could run code: refused"
        for key, payload in payloads.items()
        if payload["use_pickle"] or payload["tensor_meta"] is None
    )
    return payloads


def _refuse_objects(data: bytes) -> None:
    """Raises InputError where example inputs are more than tensors and plain values. Only the names
    in their pickle are looked at: nothing is unpickled.
    """
    if not data:
        return  # saved without example inputs
    names: list[str] = []
    try:
        with opened_archive(io.BytesIO(data)) as archive:
            pickled = [
                n for n in archive.infolist() if n.orig_filename.lower().endswith("data.pkl")
            ]
            text = b"".join(read_entry(archive, entry) for entry in pickled)
        if len(pickled) == 1 and len(text) <= MAX_PICKLE:
            names = [_called(code.name, arg) for code, arg, _ in genops(text)]
    except (InputError, ValueError):
        pass  # refused below, as nothing was called
    if not names or not all(_PLAIN.fullmatch(name) for name in names):
        raise InputError("example inputs that only unpickling could read: refused")


def _called(code: str, name: object) -> str:
    """The name that an instruction of a pickle calls; "" for an instruction that calls nothing."""
    return str(name) if code in ("GLOBAL", "INST") else code if code in _BY_STACK else ""


def inner_graph(value: Any) -> Graph:
    """The graph in an argument of a call. Raises InputError."""
    return _INNER.validated(value)  # type: ignore[return-value]


def the_one(value: Mapping[str, Any]) -> tuple[str, Any]:
    """The key and the value of an object whose single key names its kind.

    Raises InputError.
    """
    if not isinstance(value, Mapping) or len(value) != 1:
        raise InputError(f"must be an object of one key, got {shown(value)}")
    return next(iter(value.items()))


def extent_of(size: _Size) -> int:
    """A size as a number; a size that varies as in the example inputs. Raises InputError."""
    kind, value = the_one(size)
    known = value if kind == "as_int" else (value["hint"] or {}).get("as_int")
    if type(known) is not int or not 0 <= known <= MAX_BYTES:
        raise InputError("a size that the program does not tell")
    return known
