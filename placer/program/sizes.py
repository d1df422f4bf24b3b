"""Dtypes and bytes of values and parameters in a run, from those of the captured graph and the run's precision.

A run at float64, float32, bfloat16 or float16 casts the model to that type: parameters of any floating type and the
values that have the model's own floating type follow; values the model itself casts to another type do not. Under
bfloat16-autocast parameters are float32 and values keep the types of the graph.
"""

from __future__ import annotations

from collections import Counter

from placer.graph import ITEM_BYTES, Graph
from placer.settings import RunSettings

_FLOATS = ("float64", "float32", "bfloat16", "float16")


def parameter_dtype(dtype: str, settings: RunSettings) -> str:
    """The type in which a parameter captured as `dtype` and its gradient are held in a run."""
    if dtype not in _FLOATS:
        return dtype
    return "float32" if settings.precision == "bfloat16-autocast" else settings.precision


def value_dtype(graph: Graph, reference: str, settings: RunSettings) -> str:
    """The type a value has in a run."""
    dtype = graph.value(reference).dtype
    if settings.precision == "bfloat16-autocast" or dtype != _model_dtype(graph):
        return dtype
    return settings.precision


def value_bytes(graph: Graph, reference: str, rows: int, settings: RunSettings) -> int:
    """Bytes of a value for `rows` rows in a run."""
    tensor = graph.value(reference)
    captured = ITEM_BYTES[tensor.dtype]
    return tensor.bytes_at(rows) // captured * ITEM_BYTES[value_dtype(graph, reference, settings)]


def _model_dtype(graph: Graph) -> str:
    counts = Counter(p.dtype for p in graph.parameters.values() if p.dtype in _FLOATS)
    return counts.most_common(1)[0][0] if counts else ""
