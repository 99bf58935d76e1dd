"""The version of simdev, also for files that record it: profiles, imported files, saved policies,
journals.
"""

__version__ = "0.1.0"
