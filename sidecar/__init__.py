"""The serving half: configuration, TLS, HTTP, stores, metrics and the command line around `provider`."""

__version__ = "0.1.0"
