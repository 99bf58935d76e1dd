"""Spotlight: Optimizing Device Placement for Training Deep Neural Networks (Gao, Chen, Li, ICML
2018).
"""
