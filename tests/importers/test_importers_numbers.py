"""Numbers in foreign files that Python reads in its own way, or refuses to read: each is refused in
a line, by every format of text.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foreign import alike, log, matrix
from simdev.formats import import_file
from simdev.ground.errors import InputError

LONG = "9" * 5000  # Python reads integers of 4,300 digits at most
LAYER = (
    "node1 -- Conv -- forward_compute_time=1.0, backward_compute_time=1.0, "
    "activation_size={size}, parameter_size=1.0 -- stage_id={stage}\n"
)
ITEM = (
    "node2 -- __getitem__({index}) -- forward_compute_time=1.0, backward_compute_time=1.0, "
    "activation_size=1.0, parameter_size=1.0\n\tnode1 -- node2\n"
)


def chakra(number: str) -> str:
    node = {"id": number, "name": "n0", "type": "COMP_NODE", "durationMicros": "10"}
    return "".join(json.dumps(entry) for entry in ({"version": "0.0.4"}, node))


REFUSED = {
    "an exponent": ("g.txt", LAYER.format(size="1e9999", stage=0), "activation_size: must be"),
    "a fraction": ("g.txt", LAYER.format(size="1/1", stage=0), "activation_size: must be bytes"),
    "no stage": ("g.txt", LAYER.format(size=1, stage="x"), "stage_id: must be a whole number"),
    "a long stage": ("g.txt", LAYER.format(size=1, stage=LONG), "stage_id: must have at most"),
    "a superscript": ("c.json", chakra("²"), "id: must be a whole number >= 0"),
    "a long id": ("c.json", chakra(LONG), "id: must be a whole number >= 0"),
    "a long size": ("n.log", log().replace(f"{8:12d}", LONG, 1), "must hold numbers of bytes"),
    "many links": ("t.txt", matrix(alike(2, f"NV{LONG}"), ["0-63"] * 2), "must be one of NV#"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_number_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    name, text, reason = REFUSED[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=reason):
        import_file(str(tmp_path / name))


def test_what_only_looks_like_a_position_is_none(tmp_path: Path) -> None:
    text = LAYER.format(size="[1; 2]", stage=0) + ITEM.format(index=LONG)
    (tmp_path / "g.txt").write_text(text)
    imported = import_file(str(tmp_path / "g.txt"))
    assert imported.graph is not None
    (tmp_path / "n.log").write_text(log().replace("#  Rank  7", f"#  Rank  {LONG}"))
    with pytest.raises(InputError, match="the log tells of 7 ranks"):
        import_file(str(tmp_path / "n.log"), devices=8)
