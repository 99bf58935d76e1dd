"""Plans of large models: the best of all legal ones at a fixed global batch.

    question -> space (setups, plans) -> bounds prove most of them slower or too large
             -> the rest is simulated, best bound first -> plans as a frame

Every bound is proved (``bounds``), so the first row is the best of the whole space.
"""

from __future__ import annotations

from .outcome import Plans
from .planning import plan, plans_of
from .question import Question, question_of
from .scoring import confirm
from .space import Choices, Plan, Space, choices_of

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
