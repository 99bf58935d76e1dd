"""A biased random-key genetic algorithm over placements (Goncalves, Resende, Journal of Heuristics,
2011).
"""
