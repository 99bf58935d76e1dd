"""Plans of large models: the best of all legal plans at a fixed global batch.

    question -> space (setups, plans) -> bounds prove most plans slower or too large
             -> the rest is simulated, best bound first -> plans as a frame

Every bound is proved (``bounds``), so the first row is the best of the whole space.
``simdev/__init__.py`` and ``simdev/commands/plan.py`` call ``plan`` and ``plans_of``.
"""

from __future__ import annotations

from .outcome import Plans
from .searching import confirm, plan, plans_of
from .space import Choices, Plan, Question, Space, choices_of, question_of

__all__ = [
    "Choices",
    "Plan",
    "Plans",
    "Question",
    "Space",
    "choices_of",
    "confirm",
    "plan",
    "plans_of",
    "question_of",
]
