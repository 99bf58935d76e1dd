"""Placing as Gymnasium environments: ``simdev/Placement-v0`` places one group after another,
``simdev/Improve-v0`` changes a whole placement group by group.

Importing this package registers both: ``gymnasium.make("simdev/Improve-v0", oracle=oracle)``.
"""

from __future__ import annotations

import gymnasium

from .improve import ImproveEnv
from .placement import PlacementEnv

__all__ = ["ImproveEnv", "PlacementEnv"]

for name in ("Placement", "Improve"):
    if f"simdev/{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"simdev/{name}-v0", entry_point=f"{__name__}:{name}Env")
