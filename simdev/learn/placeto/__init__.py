"""Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning
(Addanki and others, NeurIPS 2019).
"""
