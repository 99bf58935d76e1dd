"""The methods that learn, one module or folder per paper, and their common parts: networks,
families of graphs, training of one policy on many graphs, and the problem as Gymnasium environments
(``env``, which needs simdev[rl] and registers them when it is imported).
"""

from __future__ import annotations

from .families import FAMILIES, Family, family, read_scenarios, write_family
from .pretraining import Practised, Trained, train

__all__ = [
    "FAMILIES",
    "Family",
    "Practised",
    "Trained",
    "family",
    "read_scenarios",
    "train",
    "write_family",
]
