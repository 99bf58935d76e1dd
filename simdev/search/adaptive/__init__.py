"""Adaptive annealing (ours): local search whose moves a policy learns while it searches."""
