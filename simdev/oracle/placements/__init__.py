"""Placements of whole ops: one graph on one cluster as columns, and kernels that run them.

problem.py has the columns, step.py the recurrence, judging.py bounds of time and memory during a
run, moves.py the re-simulation of a few ops that moved; evaluator.py computes memory and calls all
of them. All need Numba.
"""
