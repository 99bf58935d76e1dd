"""What the claims about speed rest on: ``python -m benchmarks.engine``, ``python -m
benchmarks.export``.
"""
