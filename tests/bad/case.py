"""A broken file: its text, and simdev's whole message about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bad:
    """A broken file. ``kind`` names its reader, ``stderr`` is the whole expected message."""

    kind: str
    name: str
    text: str
    stderr: str

    @property
    def file(self) -> str:
        return "f.jsonl" if self.kind == "profile" else "f.json"


def bad_of(kind: str, name: str, text: str, lines: tuple[str, ...]) -> Bad:
    """A case whose messages are all about the file itself."""
    file = "f.jsonl" if kind == "profile" else "f.json"
    return Bad(kind, name, text, "\n".join(f"{file}: {line}" for line in lines))
