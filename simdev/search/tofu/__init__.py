"""Tofu: automatic partitioning of a dataflow graph (Wang, Huang, Li, EuroSys 2019)."""
