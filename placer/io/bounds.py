"""Numbers as files may give them: finite, of the sign they mean, within what any machine has."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Bytes, rows and devices are counted in 63 bits; FLOPs (4e19 in a step of 16M tokens of Llama 405B), rates and seconds
# lie below this.
MOST_COUNTED = 2**63 - 1
MOST = 1e30

Whole = Annotated[int, Field(ge=-(10**30), le=10**30)]
Label = Annotated[int, Field(ge=-MOST_COUNTED, le=MOST_COUNTED)]
Flops = Annotated[int, Field(ge=0, le=10**30)]
Count = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
CountFromOne = Annotated[int, Field(gt=0, le=MOST_COUNTED)]
Finite = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
AmountAboveZero = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
# What is achieved of a nominal rate; measured ones may be a little above it.
AchievedShare = Annotated[float, Field(gt=0, le=1.5, allow_inf_nan=False)]
# The name of a dtype of `placer.graph.ITEM_BYTES`, of a dim, a device, an op: a line, not a book.
ShortText = Annotated[str, Field(max_length=10_000)]
