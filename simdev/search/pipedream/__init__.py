"""PipeDream (Narayanan et al., SOSP 2019): its planner, and its plan executed."""
