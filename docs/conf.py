"""The documentation site, built from the folder above: `make docs`.

Pages, notebooks and the documents at the top stand where their links find them on disk, so the
source folder is the repository; what is no page of the site is not looked at.
"""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

import simdev  # noqa: E402

project = "simdev"
author = "the simdev developers"
release = version = simdev.__version__
copyright = ""

extensions = [
    "sphinx.ext.autodoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "public_names",
    "command_line",
    "file_formats",
    "code_tables",
    "gallery",
    "notebooks",
]

root_doc = "docs/index"
THE_HOUSE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
include_patterns = ["docs/**", "notebooks/*.ipynb", *THE_HOUSE]
exclude_patterns = [".*", "build", "simdev", "tests", "benchmarks", "docs/_*", "**/_build"]
suppress_warnings = [
    "myst.header",  # notebooks may begin below the first level
]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name none: commands and what they print
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

# docs/_extensions/notebooks.py says which notebooks are executed, and where their answers are kept.
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# Docstrings
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_display_short_literal_types = True
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
nitpicky = True
# Without a page here: names of other libraries, what annotations call them, and names that simdev
# keeps to itself.
OTHERS = r"(collections|decimal|fractions|numpy|nx|os|pathlib|pd|torch|types|typing)\..*"
SHORT = "Any|AnyWidget|Axes|Figure|Fraction|Hashable|Iterable|Mapping|PathLike|Sequence|UnionType"
INNER = "Grid|Json|Number|PlacementEvaluator|Setup|Trace|_Methods"
nitpick_ignore_regex = [
    ("py:.*", names) for names in (OTHERS, SHORT, INNER, "|".join(dir(builtins)))
]

# The site: nothing is asked of anywhere, so it opens from a folder.
html_theme = "furo"
html_title = "simdev"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_extra_path = ["_site"]
html_copy_source = False
html_show_search_summary = False  # a page of a folder may not read the others
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
