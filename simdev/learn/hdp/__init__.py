"""HDP: A Hierarchical Model for Device Placement (Mirhoseini, Goldie, Pham, Steiner, Le, Dean, ICLR
2018).
"""
