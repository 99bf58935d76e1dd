"""The version, which the package, imported files and the journals of searches read here."""

__version__ = "0.1.0"
