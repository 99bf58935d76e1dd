"""Tables of the documents that are written from the code name all that it says, and say it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {
    (page, name)
    for page in DOCS.rglob("*.md")
    for name in re.findall(r"^\.\. code-table:: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
}


def test_every_row_says_something() -> None:
    pytest.importorskip("sphinx")
    program = f"""
import sys
sys.path.insert(0, {str(DOCS / "_extensions")!r})
from code_tables import rows_of, table_of
from docutils.core import publish_from_doctree
from docutils.utils import new_document
for path in sys.argv[1:]:
    rows = dict(rows_of(path))
    assert rows and all(text.endswith(".") for text in rows.values()), (path, rows)
    document = new_document(path)
    document += table_of(path, "name, meaning")
    page = publish_from_doctree(document, writer="html5").decode()
    assert page.count("<tr") == 1 + len(rows)
"""
    names = sorted({name for _, name in TABLES})
    answer = subprocess.run([sys.executable, "-c", program, *names], capture_output=True)
    assert names
    assert not answer.returncode, answer.stderr.decode()
