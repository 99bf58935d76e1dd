"""What the trace of a step means, in numbers: spans, usage, the critical path, and the sections
that only some steps have.
"""
