"""The ground floor, which knows nothing of simulation: errors, units, frozen arrays, compiled
kernels, processes, and the registry by which a lower floor finds what a higher one provides.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent.parent
"""The folder of the package simdev."""
