"""Placements of whole ops: one graph on one cluster as columns, and kernels that run them.

problem.py says what the kernels read, step.py is the recurrence, judging.py what is known before it
ends, moves.py the re-simulation of a few ops that moved; evaluator.py tells the memory and calls
them all. All need numba.
"""
