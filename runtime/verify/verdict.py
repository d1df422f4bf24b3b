"""Rounding or error: what each quantity of a step may be off by.

    float64     1e-9 of a tensor's size (1e-6 where the model itself casts to float32), or, where that is not enough,
    all types   MANY times what rounding alone does to it on one device (`eager.rounding`) + UNITS of its last place

Gradients that replicas sum in 16 bits may be off by what that rounds besides (`compressed`), and so may their norm.

size of a tensor = its largest element + 1e-3 of the largest of all tensors of its kind. Where float64 knows the exact
value, the plan's error is its distance from that.

Weights are held separately: torch's own clipping and optimizer are given the plan's gradients where those were found
equal, so that a gradient that is nothing but rounding, of which AdamW makes a full step, is no difference, and no
element is left out. Weights of 16 bits show little of an update: what they have moved by since the start is held too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from placer.runtime.verify.report import Comparison

# float64: the project's own promise. 1e-6 where the model casts to float32: sums in another order differ by up to 4e-8
# after such a cast.
EXACT, CAST = 1e-9, 1e-6
# Three shaken runs, a reversed and a plain one are a sample. Of 17,150 losses, norms and gradients of further shaken
# runs (words, tiny GPT-2, Llama and Gemma-2 in float32 and bfloat16; 23 November 2026) none was further off than UNITS
# and 2.0 times its sample.
MANY = 4.0
UNITS = 8.0
_COMMON = 1e-3

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """For tensors of one precision: `relative` to their size, and what rounding does to some, by name (`noise`)."""

    precision: str
    relative: float
    noise: Mapping[str, float] = field(default_factory=dict)


def scalar(step: int, quantity: str, ours: float, theirs: float, allowed: Allowed) -> Comparison:
    """A number. Where one device gives none, as of a batch all of whose labels are left out, neither may the plan."""
    alike = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    size, error = (1.0, 0.0) if alike else (max(abs(theirs), 1e-12), abs(ours - theirs))
    limit = max(allowed.relative, allowed.relative + MANY * allowed.noise.get(quantity, 0.0) / size)
    return Comparison(
        step=step, quantity=quantity, absolute=error, relative=error / size, allowed=limit, precision=allowed.precision
    )


def tensors(step: int, quantity: str, ours: Tensors, theirs: Tensors, allowed: Allowed) -> Comparison:
    """The tensor that is furthest off for what it may be; one that is missing is off without limit."""
    worst = Comparison(
        step=step, quantity=quantity, absolute=0.0, relative=0.0, allowed=allowed.relative, precision=allowed.precision
    )
    for entry in _entries(worst, ours, theirs, allowed):
        if not entry.relative * worst.allowed <= worst.relative * entry.allowed:
            worst = entry
    return worst


def _entries(base: Comparison, ours: Tensors, theirs: Tensors, allowed: Allowed) -> Iterator[Comparison]:
    largest = max((_largest(t) for t in theirs.values()), default=0.0)
    for name, right in theirs.items():
        if name not in ours or ours[name].shape != right.shape:
            yield _changed(base, f"{name} is missing")
            continue
        if right.numel():
            error = _largest(ours[name].double() - right.double())
            size = _largest(right) + _COMMON * largest + 1e-300
            limit = allowed.relative + MANY * allowed.noise.get(name, 0.0) / size
            yield Comparison(
                step=base.step, quantity=base.quantity, absolute=error, relative=error / size, allowed=limit,
                where=name, precision=base.precision,
            )  # fmt: skip
    for name in ours:
        if name not in theirs:
            yield _changed(base, f"{name} has one, on one device it has none")


def _changed(base: Comparison, where: str) -> Comparison:
    endless = float("inf")
    return Comparison(
        step=base.step, quantity=base.quantity, absolute=endless, relative=endless, allowed=base.allowed, where=where,
        precision=base.precision,
    )  # fmt: skip


def moved(step: int, ours: Tensors, theirs: Tensors, start: Tensors, precision: str) -> Comparison | None:
    """How far weights of 16 bits have moved from `start`, all together; None where there are none.

    One that lies between two numbers is rounded to either: that adds up to as much as their masters differ by. Updates
    that were lost in rounding add up to themselves.
    """
    sixteen = [name for name, t in theirs.items() if t.is_floating_point() and t.element_size() == 2 and name in ours]
    if not sixteen:
        return None
    way = sum(_sum(theirs[name], start[name]) for name in sixteen)
    error = sum(_sum(ours[name], theirs[name]) for name in sixteen)
    unit = max(torch.finfo(theirs[name].dtype).eps for name in sixteen)
    few = UNITS * unit * max(_largest(theirs[name]) for name in sixteen)
    return Comparison(
        step=step, quantity="updates", absolute=error, relative=error / (way + 1e-300),
        allowed=(UNITS * unit / 2 * way + few) / (way + 1e-300), where=f"{len(sixteen)} weights of 16 bits",
        precision=precision,
    )  # fmt: skip


def _sum(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().sum())


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0
