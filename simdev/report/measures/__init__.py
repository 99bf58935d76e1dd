"""The meaning of a step's trace in numbers: spans, usage, the critical path, and the sections that
only some steps have.
"""
