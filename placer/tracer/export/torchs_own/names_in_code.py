"""Names of a model's own that Python keeps for itself, in the code that torch writes for a graph.

People call entries of a ModuleDict or a ParameterDict `in` or `from`: torch 2.13 writes `self.weights.in`, which is no
Python.
"""

from __future__ import annotations

import keyword

from torch.fx import graph


def _format_target(base: str, target: str) -> str:
    """How code reads what lies at the path `target` below `base`."""
    for name in target.split("."):
        plain = name.isidentifier() and not keyword.iskeyword(name)
        base = f"{base}.{name}" if plain else f"getattr({base}, {name!r})"
    return base


graph._format_target = _format_target
