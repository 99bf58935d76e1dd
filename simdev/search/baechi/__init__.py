"""Baechi (Jeon et al., SoCC 2020): memory-constrained placers that need no learning."""

from __future__ import annotations

from .placers import earliest_first, m_etf, m_sct, m_topo, topological_fill

__all__ = ["earliest_first", "m_etf", "m_sct", "m_topo", "topological_fill"]
