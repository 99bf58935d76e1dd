"""The lowest floor, which knows nothing about simulation: errors, units, frozen containers,
compiled kernels, processes, and the registry by which a lower floor reaches objects of a higher
one. Every other floor imports from here.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent.parent
"""The folder of the package simdev."""
