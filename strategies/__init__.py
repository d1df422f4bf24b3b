"""Pluggable optimizers: each knows the problem, none knows the runtime. The table of names is in `placer.search`."""
