"""The nouns of a question and of its answer: graph, cluster, strategy, task graph and trace, with
what follows from a graph alone: semantics of ops, structure of a step, schedules, models.
"""
