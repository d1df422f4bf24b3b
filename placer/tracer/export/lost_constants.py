"""The values of tensors that forward makes on its inputs' device, which an export on meta has lost.

An export on the real device has them, and may differ otherwise: what is a number there (`z[mask] = 0.0`) is an op on
meta. So its constants are looked up by who reads them, and the graph on meta, which plans are made from, is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import fx

from placer.tracer.export.cleaning import Plain

#: Who reads a tensor: which operator, the how-manieth call of it, at which place.
_Reader = tuple[str, int, int]


def lost(plain: Plain, own: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """The constants of a graph on meta that something reads and whose values are not known."""
    read = {str(node.target) for node in plain.graph.nodes if node.op == "get_attr" and node.users}
    return tuple(name for name, tensor in plain.state.items() if tensor.is_meta and name in read and name not in own)


def regained(plain: Plain, real: Plain, names: tuple[str, ...]) -> bool:
    """Whether the constants `names` of `plain` got the values of those that the same ops read in `real`; else they are
    as they were."""
    readers = {reader: str(node.target) for reader, node in _read(real)}
    found: dict[str, torch.Tensor] = {}
    for reader, node in _read(plain):
        name, twin = str(node.target), real.state.get(readers.get(reader, ""))
        if name not in names:
            continue
        if twin is None or not _alike(plain.state[name], twin) or found.setdefault(name, twin) is not twin:
            return False
    if len(found) < len(names):
        return False
    plain.state.update(found)
    return True


def _alike(one: torch.Tensor, real: torch.Tensor) -> bool:
    return not real.is_meta and (one.shape, one.dtype) == (real.shape, real.dtype)


def _read(plain: Plain) -> Iterator[tuple[_Reader, fx.Node]]:
    """Each tensor that a graph holds, with each of its readers."""
    calls = Counter[str]()
    for node in plain.graph.nodes:
        target = str(node.target)
        calls[target] += node.op == "call_function"
        for place, source in enumerate(node.all_input_nodes):
            if source.op == "get_attr" and node.op == "call_function":
                yield (target, calls[target], place), source
