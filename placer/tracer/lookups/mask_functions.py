"""Masks that transformers maps from places by torch.vmap, under which an export sees no dim of what is mapped over.

It does so where a model gives a function of its own beside the library's (Gemma 3: an image sees itself whole, within
a window), as it cannot know that such a function takes each place by itself. Those that do give the same of all places
at once, which is how the library makes its other masks: its own functions, and ones of its models that only compare
and count places and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

# What such a function of a model may name: nothing of it takes places together.
_PLACE_BY_PLACE = frozenset({"abs", "bool", "dtype", "tensor", "torch", "where"})


def mask_of_all_places(library: ModuleType, given: dict[str, Any]) -> Any:
    """In the place of the function that maps a mask's: one that computes all places at once; NotImplemented where it is
    not known to give the same."""
    function = given["mask_function"]
    spread = getattr(library, "_non_vmap_expansion_sdpa", None)
    if spread is None or not _takes_each_place(function, library.__name__):
        return NotImplemented

    def made(*places: Tensor) -> Tensor:
        mask: Tensor = function(*spread(*places))
        return mask.expand(*(one.shape[0] for one in places))

    return made


def _takes_each_place(function: object, library: str) -> bool:
    """Whether a function, and those that it is made of, gives of each place what the place says by itself."""
    if not isinstance(function, FunctionType) or not function.__module__.startswith("transformers."):
        return False
    own = function.__module__ == library
    known = (int, float, Tensor) if own else (int, float)
    kept = _leaves(cell.cell_contents for cell in function.__closure__ or ())
    alone = own or _PLACE_BY_PLACE.issuperset(function.__code__.co_names)
    return alone and all(isinstance(one, known) or _takes_each_place(one, library) for one in kept)


def _leaves(values: Iterable[object]) -> Iterator[object]:
    for one in values:
        if isinstance(one, tuple | list):
            yield from _leaves(one)
        elif one is not None:
            yield one
