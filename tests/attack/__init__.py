"""Breaks valid files and commands in thousands of ways: simdev must answer or refuse each mutant,
and never crash or hang.

``python -m tests.attack --count 200000`` makes and judges mutants. ``seeds`` has the files and
commands, ``mutate`` breaks them, ``judge`` runs them in a separate process.
"""
