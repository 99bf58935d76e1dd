"""Strategies that split ops: blocks cached by op and configuration, and kernels that run them.

program.py runs the rules of ``lowering.partition`` op by op and remembers the results. blocks.py
writes parts and sums as integers, whose words columns.py names. From these, kernels compute which
pieces each part reads (pieces.py, fan.py) and when all tasks run (run.py, hosts.py); evaluator.py
computes memory and calls all of them. All need Numba.
"""
