"""Strategies that split ops: blocks cached by op and configuration, and kernels that run them.

The rules of ``lowering.partition`` are run op by op and remembered (program.py). Parts and sums are
written down as integers (blocks.py, in the words of columns.py). From these, kernels tell who is
handed what (pieces.py, fan.py) and when all happens (run.py, hosts.py); evaluator.py tells the
memory and calls them all. All need numba.
"""
