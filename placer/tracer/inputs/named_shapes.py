"""named_shapes(text): a batch written in one line, `x=8x3x32x32,y=8:int64`, as shapes by name.

An input that is the same in every step is written by its numbers: `grid=[[1,4,4],[1,4,4]]:int32`.
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

import torch

from placer.errors import UsageError
from placer.tracer.inputs.constants import Constant


def named_shapes(text: str) -> dict[str, object]:
    """Shapes by name, (shape, type) where a type is given, constants where numbers are. Raises UsageError for what is
    no shape."""
    shapes: dict[str, object] = {}
    for part in _parts(text):
        name, _, rest = part.strip().partition("=")
        shape, typed, dtype = rest.partition(":")
        if name and name not in shapes and shape.startswith("["):
            shapes[name] = _constant(name, shape, dtype if typed else None)
            continue
        sizes = shape.split("x") if shape or not typed else []  # `weight=:float32`: one number, without dims
        if not name or not all(size.isdecimal() and int(size) > 0 for size in sizes) or (typed and not dtype):
            raise UsageError(
                f"{part!r} of the batch is no named shape; write NAME=ROWSxSIZE, as in input_ids=8x128, or with a "
                "type, as in y=8:int64, and one number without dims as weight=:float32"
            )
        if name in shapes:
            raise UsageError(f"the batch names {name!r} twice; give each input once")
        numbers = tuple(int(size) for size in sizes)
        shapes[name] = (numbers, dtype) if typed else numbers
    return shapes


def _parts(text: str) -> list[str]:
    """The text at its commas, but for those in brackets."""
    depths = [*accumulate((sign == "[") - (sign == "]") for sign in text)]
    ends = [at for at, sign in enumerate(text) if sign == "," and not depths[at]]
    return [text[first + 1 : end] for first, end in pairwise((-1, *ends, len(text)))]


def _constant(name: str, numbers: str, dtype: str | None) -> Constant:
    kind = getattr(torch, dtype, None) if dtype else None
    try:
        made = Constant(json.loads(numbers)).tensor(name)
    except ValueError:
        raise UsageError(f"{name}={numbers:.80} of the batch is no list of numbers; write [[1,4,4],[1,4,4]]") from None
    if dtype is not None and not isinstance(kind, torch.dtype):
        raise UsageError(f"{name} of the batch has the type {dtype!r}; write one of torch's, as in [1,4,4]:int32")
    if kind is not None and not (kind.is_floating_point or torch.equal(made.to(kind).to(made.dtype), made)):
        raise UsageError(
            f"{name}={numbers:.80} of the batch has numbers that are none of {dtype}; write a type that is"
        )
    return Constant(made.to(kind or (torch.get_default_dtype() if made.is_floating_point() else made.dtype)))
