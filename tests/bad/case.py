"""One broken file: its text, and everything that simdev has to say about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bad:
    """``kind`` tells who reads the file, ``stderr`` is the whole message."""

    kind: str
    name: str
    text: str
    stderr: str

    @property
    def file(self) -> str:
        return "f.jsonl" if self.kind == "profile" else "f.json"


def bad_of(kind: str, name: str, text: str, lines: tuple[str, ...]) -> Bad:
    """A case whose lines all tell of the file itself."""
    file = "f.jsonl" if kind == "profile" else "f.json"
    return Bad(kind, name, text, "\n".join(f"{file}: {line}" for line in lines))
