"""Searching for placements: clients of the oracle, which know nothing of the engines.

``search`` drives any method with ``ask`` and ``tell`` (asktell.py); env.py is the same question as a Gymnasium
environment, for learners (it needs simdev[rl], and is registered when it is imported).
"""

from __future__ import annotations

from .asktell import METHODS, Annealing, Found, Method, Random, search

__all__ = ["METHODS", "Annealing", "Found", "Method", "Random", "search"]
