"""Strategies that split ops: blocks cached by op and configuration, and kernels that run them.

``lowering.partition`` says what a strategy means; this runs its rules op by op and keeps what they
give (program.py), writes it down as integers (blocks.py, in the words of columns.py), and lets
kernels tell who is handed what (pieces.py) and when all happens (run.py, hosts.py); evaluator.py
tells the memory and calls them all. All need numba.
"""
