"""The meaning of a step's trace in numbers: spans, usage, the critical path, and the sections that
only some steps have. Every module here is imported when a report is made, so a class derived from
``section.Section`` in a new one is part of reports without a list.
"""
