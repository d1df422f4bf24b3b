"""Masks of attention that transformers leaves out in training, and would make while it is exported.

It looks whether rows hold several sequences, in the values of their positions, and whether a mask would say no more
than a flag does; of what it traces it takes neither for granted (its masking_utils.py). A captured model would make a
mask of all positions, with which no kernel skips what is hidden, and keep one for each row; and some models cannot add
one. Where positions are made of constants (`known_values`) and there is no padding, or one that hides nothing by
constants too, the answers are those of training.

Where a model makes a cache, as its configuration has it in training too, it does not look for several sequences: tokens
behind positions that begin anew see those before. An export makes no cache, and answers for the model that does.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Container, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from placer.tracer.lookups.known_values import KnownValues
from placer.tracer.lookups.mask_functions import mask_of_all_places

MODULE = "transformers.masking_utils"
# Names of what a forward is given as its cache, since version 5.20 and before.
_CACHES = ("cache", "past_key_values")


@contextlib.contextmanager
def library_masks_left_out(cached: Container[int]) -> Iterator[None]:
    """In the body transformers makes the masks that it makes in training; `cached`: the identities of configurations
    that ask for a cache there."""
    library = sys.modules.get(MODULE)
    if library is None:
        yield
        return
    known = KnownValues()
    answers: dict[str, Callable[..., Any]] = {
        "find_packed_sequence_indices": partial(_packed, known, cached),
        "_ignore_causal_mask_sdpa": partial(_needs_no_causal, known),
        "_ignore_bidirectional_mask_sdpa": partial(_needs_none, known),
        "_vmap_expansion_sdpa": partial(mask_of_all_places, library),
    }
    with contextlib.ExitStack() as entered:
        entered.enter_context(known)
        for name, answer in answers.items():
            _answer(entered, library, name, answer)
        yield


def _answer(entered: contextlib.ExitStack, library: ModuleType, name: str, answer: Callable[..., Any]) -> None:
    """Asks `answer` first; where it does not know, and for another signature, the library's own."""
    asked: Callable[..., Any] | None = getattr(library, name, None)
    if asked is None:
        return

    def asking(*args: Any, **kwargs: Any) -> Any:
        told = answer(inspect.signature(asked).bind(*args, **kwargs).arguments)
        return asked(*args, **kwargs) if told is NotImplemented else told

    entered.enter_context(mock.patch.object(library, name, asking))


def _packed(known: KnownValues, cached: Container[int], given: dict[str, Any]) -> Any:
    """None where each row is one sequence, its positions follow each other, and where the model does not ask."""
    if _has_cache(cached):
        return None
    positions = given.get("position_ids")
    one = isinstance(positions, Tensor) and known.say(positions, lambda own: (torch.diff(own, dim=-1) == 1).all())
    return None if one else NotImplemented


def _has_cache(cached: Container[int]) -> bool:
    """Whether the module that makes the mask makes a cache: its configuration asks for one, its forward knows of it,
    and it does not compute its layers again, which forbids it (`merge_with_config_defaults`)."""
    frame = sys._getframe(1)
    while frame is not None and not hasattr(frame.f_locals.get("self"), "config"):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return False
    names, module = frame.f_locals, frame.f_locals["self"]
    knows = not names.keys().isdisjoint(_CACHES) and ("use_cache" in names or "use_cache" in names.get("kwargs", ()))
    again = getattr(module, "gradient_checkpointing", False) and module.training and torch.is_grad_enabled()
    return id(module.config) in cached and knows and not again


def _needs_no_causal(known: KnownValues, given: dict[str, Any]) -> Any:
    """True where the flag says what the mask would: as many keys as queries, no padding, no window."""
    queries, keys = given.get("q_length", given.get("query_length")), given.get("kv_length")
    return True if queries == keys and isinstance(keys, int) and _unpadded(known, given) else NotImplemented


def _needs_none(known: KnownValues, given: dict[str, Any]) -> Any:
    """True where the mask would hide nothing."""
    return True if _unpadded(known, given) else NotImplemented


def _unpadded(known: KnownValues, given: dict[str, Any]) -> bool:
    """No padding is given, or one that the model made of ones alone; and no window hides what is there."""
    window, keys, padding = given.get("local_attention_size"), given.get("kv_length"), given.get("padding_mask", ...)
    whole = padding is None or (isinstance(padding, Tensor) and bool(known.say(padding, Tensor.all)))
    return whole and isinstance(keys, int) and (window is None or keys < window)
