"""Splits of ops: OptCNN's tables, FlexFlow's walks and branch and bound over layers."""
