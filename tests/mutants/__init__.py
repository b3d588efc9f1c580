"""Mutants: each promise of the threat model, broken in one line, must make the test fail that is named for it."""
