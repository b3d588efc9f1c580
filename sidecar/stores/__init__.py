"""Authority stores: one module an engine, imported only when configuration names it."""
