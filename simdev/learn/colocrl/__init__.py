"""ColocRL: Device Placement Optimization with Reinforcement Learning (Mirhoseini, Pham, Le, Steiner
and others, ICML 2017).
"""
