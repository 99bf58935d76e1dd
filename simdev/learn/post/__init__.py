"""Post: cross-entropy minimisation and proximal policy optimisation of one distribution, without a
network (Gao, Chen, Li, NeurIPS 2018).
"""
