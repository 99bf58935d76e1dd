"""The nouns of a question and of its answer: graph, cluster, strategy, task graph and trace; and
all that depends on a graph alone: semantics of ops, structure of a step, schedules, models.
"""
