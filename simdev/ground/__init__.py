"""The ground floor, which knows nothing of simulation: errors, units, frozen containers, compiled
kernels, processes, and the registry by which a lower floor finds what a higher one provides. Every
other floor imports from here.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent.parent
"""The folder of the package simdev."""
