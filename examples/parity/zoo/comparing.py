"""What a run came to, beside what the plain loop came to.

float64 is held to 1e-9, models that cast to float32 themselves to 1e-6, each tensor relative to its largest element (a
gradient at least to 1e-4 of the model's largest: one that is zero but for rounding has no size of its own). Lower
precisions are held to what rounding alone does to the plain loop: `SLACK` times the largest distance between it in
that precision and itself in float64, and itself started from weights that are off by the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.parity.zoo.eager import Numbers

EXACT, CAST = 1e-9, 1e-6
NOISE = 1e-4
# An update of a weight: one that started at zero and has been moved by rounding only has no size of its own either.
STEP = 1e-3
# Of the largest gradient, what is nothing in float64.
NOTHING = 1e-13
SLACK = 10.0
# The least that is asked of lower precisions: some units in the last place of float32 and of bfloat16.
LAST_BITS = {"float32": 1e-5, "bfloat16": 3e-2, "bfloat16-autocast": 3e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far a kind of result is from what it should be, and where it is farthest. inf: it is of another form."""

    what: str
    apart: float = 0.0
    where: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.where}: off by {self.apart:.1e}"


def differences(found: Numbers, wanted: Numbers, limit: float) -> str:
    """The first kinds of result that differ; "" where none does."""
    return "; ".join(str(one) for one in list(_far(found, wanted, limit))[:3])


def rounding_differences(found: Numbers, wanted: Numbers, others: Sequence[Numbers], least: float) -> str:
    """The same, held to how far `others` are from `wanted`."""
    spread: dict[str, float] = {}
    for other in others:
        for one in distances(other, wanted):
            spread[one.what] = max(spread.get(one.what, least), SLACK * one.apart)
    far = [one for one in distances(found, wanted) if one.apart > spread.get(one.what, least)]
    return "; ".join(f"{one} of {spread.get(one.what, least):.1e}" for one in far[:3])


def distances(found: Numbers, wanted: Numbers) -> Iterator[Distance]:
    """Of the state before, each step's loss and gradients, the state after, the loss in evaluation."""
    if missing := wanted.before.keys() ^ found.before.keys():
        yield Distance(what="names of the state", apart=float("inf"), where=", ".join(sorted(missing)[:4]))
        return
    yield _farthest("initial", found.before, wanted.before)
    for step, (ours, theirs) in enumerate(zip(found.gradients, wanted.gradients, strict=True), 1):
        yield _farthest(f"loss of step {step}", _loss(found, step), _loss(wanted, step))
        largest = max((float(one.abs().max()) for one in theirs.values() if one.numel()), default=0.0)
        yield _farthest(f"step {step} gradient", _filled(ours, theirs), _filled(theirs, ours), NOISE * largest)
    still = _still(wanted)
    yield _farthest("final", {**found.after, **_held(found, still)}, {**wanted.after, **_held(wanted, still)}, STEP)
    if found.evaluated is not None:
        yield _farthest("loss in evaluation", _number(found.evaluated), _number(wanted.evaluated))


def _still(wanted: Numbers) -> frozenset[str]:
    """The weights whose gradients are zero but for rounding, as of a bias before a norm: AdamW makes steps of that."""
    largest = max((_size(one) for step in wanted.gradients for one in step.values()), default=0.0)
    sizes: dict[str, float] = {}
    for step in wanted.gradients:
        for name, one in step.items():
            sizes[name] = max(sizes.get(name, 0.0), _size(one))
    return frozenset(name for name, size in sizes.items() if size <= NOTHING * largest)


def _held(found: Numbers, still: frozenset[str]) -> dict[str, Tensor]:
    """Such weights to as many digits as steps of rounding leave alone."""
    return {name: _real(found.after[name]).double().round(decimals=6) for name in still & found.after.keys()}


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _far(found: Numbers, wanted: Numbers, limit: float) -> Iterator[Distance]:
    return (one for one in distances(found, wanted) if not one.apart <= limit)


def _farthest(what: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], floor: float = 0.0) -> Distance:
    each = [(_relative(found[name], right, floor), name) for name, right in wanted.items()]
    apart, where = max(each, default=(0.0, ""))
    return Distance(what=what, apart=apart, where=where)


def _relative(left: Tensor, right: Tensor, floor: float) -> float:
    if left.shape != right.shape:
        return float("inf")
    if not right.numel():
        return 0.0
    left, right = _real(left).double(), _real(right).double()
    if bool((left.isfinite() != right.isfinite()).any()):
        return float("inf")
    left, right = left.nan_to_num(), right.nan_to_num()
    scale = max(float(right.abs().max()), floor) or 1.0
    return float((left - right).abs().max()) / scale


def _loss(numbers: Numbers, step: int) -> dict[str, Tensor]:
    return _number(numbers.losses[step - 1])


def _number(value: float | None) -> dict[str, Tensor]:
    return {"": torch.tensor(math.nan if value is None else value, dtype=torch.float64)}


def _filled(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No gradient counts as zeros here: whether the optimizer saw one shows in the final weights."""
    return {name: own.get(name, torch.zeros_like(one)) for name, one in {**other, **own}.items()}


def _real(one: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts side by side."""
    return torch.view_as_real(one) if one.is_complex() else one
