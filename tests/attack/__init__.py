"""Valid files and commands, broken in thousands of ways: each mutant is answered or refused, never
worse.

``python -m tests.attack --count 200000`` makes and judges them. ``seeds`` has the files and
commands, ``mutate`` breaks them, ``judge`` runs them in a process of its own.
"""
