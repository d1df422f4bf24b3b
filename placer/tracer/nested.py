"""Tensors among the arguments of a call, however these are nested."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
