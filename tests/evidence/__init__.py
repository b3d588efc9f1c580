"""Rotation evidence: two sidecars as a cluster would run them, and a gate for each thing that must hold there."""
