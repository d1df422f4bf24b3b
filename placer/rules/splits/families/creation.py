"""Ops that make tensors from sizes: each rank makes its piece."""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import Call
from placer.rules.layouts import Choice
from placer.rules.splits.patterns import Pattern, numbered, pattern_choices, tensors


def filled(call: Call) -> tuple[Choice, ...]:
    """`zeros(sizes)`, `full(sizes, value)`, `new_ones(like, sizes)`: any dim."""
    inputs = tuple(("",) * len(value.shape) for value in tensors(call))
    return pattern_choices(Pattern(inputs=inputs, outputs=(numbered(call.outputs[0].shape),)), local="sizes")


def arange(call: Call) -> tuple[Choice, ...]:
    """`arange(end)`, `arange(start, end, step)`: each rank counts on from where its piece starts."""
    pattern = Pattern(inputs=(), outputs=(numbered(call.outputs[0].shape),))
    return tuple(replace(choice, local="arange") for choice in pattern_choices(pattern))
