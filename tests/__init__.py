"""The tests: one file for each module of the product, and what they share in `kit`."""
