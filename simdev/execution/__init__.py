"""Executing a scenario: the two engines, the checker that shares no code with them, the period of
repeated steps, and scenarios on changed machines. ``scenario.execute`` is the way in.
"""
