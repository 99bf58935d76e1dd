"""Executing a scenario: the two engines, the checker that shares no code with them, the period of
repeated steps, and what a scenario becomes when its machine changes. ``scenario.execute`` is the
way in.
"""
