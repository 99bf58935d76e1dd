"""The version, read here by the package and by whatever notes which version made it: profiles,
imported files, saved policies, journals.
"""

__version__ = "0.1.0"
