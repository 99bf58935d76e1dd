"""Loops of the placers that are compiled where numba is installed, and run as plain Python
elsewhere.

Kernels take named tuples of flat columns (arrays where compiled, lists where not) and allocate
nothing.
"""
