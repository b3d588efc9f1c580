"""The command line: one module a command; `sidecar/__main__.py` puts them together."""
