"""Dtypes and bytes of values and parameters in a run: those of the captured graph, at the run's precision.

A run casts the model to its precision: parameters of any floating type, and the values that have the model's own
floating type, follow; values the model itself casts to another type do not. Under bfloat16-autocast parameters are
float32, and values that cross blocks keep the types of the graph.
"""

from __future__ import annotations

from placer.costs.precision import FLOATING, Numerics
from placer.graph import Graph
from placer.plans.settings import RunSettings


def parameter_dtype(dtype: str, settings: RunSettings) -> str:
    """The type in which a parameter captured as `dtype` and its gradient are held in a run."""
    if dtype not in FLOATING:
        return dtype
    return "float32" if settings.precision == "bfloat16-autocast" else settings.precision


def value_dtype(graph: Graph, reference: str, settings: RunSettings) -> str:
    """The type a value that crosses blocks has in a run."""
    return Numerics.of(graph, settings).kept(graph.value(reference).dtype)


def value_bytes(graph: Graph, reference: str, rows: int, settings: RunSettings) -> int:
    """Bytes of a value that crosses blocks, for `rows` rows, in a run."""
    return Numerics.of(graph, settings).bytes_of(graph.value(reference), rows)
