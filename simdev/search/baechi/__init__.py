"""Baechi (Jeon et al., SoCC 2020): memory-constrained placers that need no learning."""
