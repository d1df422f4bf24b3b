"""Pooling and resampling: every dim before space freely, space as a sliding window where windows are regular."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placer.rules.calls import Argument, Call
from placer.rules.layouts import Choice, Halo
from placer.rules.patterns import Pattern, broadcast, divisible, linear_choices, numbered, partial, pattern_choices


def max_pool(call: Call) -> tuple[Choice, ...]:
    """`max_poolNd(x, kernel, stride, padding, dilation, ceil_mode)`."""
    space = _space(call)
    return _windowed(call, broadcast(call.argument(3, "padding", 0), space, 0), call.argument(4, "dilation", 1))


def average_pool(call: Call) -> tuple[Choice, ...]:
    """`avg_poolNd(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)`: linear.

    Space stays whole where windows at the edge are divided by another count than the others.
    """
    space = _space(call)
    padding = broadcast(call.argument(3, "padding", 0), space, 0)
    counted = call.argument(5, "count_include_pad", True) is not False or not any(padding)
    if call.argument(4, "ceil_mode", False) is True or not counted:
        return (*per_plane(call), partial(call))
    return (*_windowed(call, padding, 1), partial(call))


def adaptive_average_pool(call: Call) -> tuple[Choice, ...]:
    """`adaptive_avg_poolNd(x, sizes)`: a dim pooled to 1 is a mean; one that divides evenly is cut with its result."""
    x, out = call.tensor(0).shape, call.outputs[0].shape
    first = len(x) - _space(call)
    labels = numbered(x)
    dims = range(first, len(x))
    means = tuple(labels[dim] for dim in dims if out[dim] == 1 and labels[dim])
    even = {dim for dim in dims if out[dim] > 1 and x[dim] % out[dim] == 0}
    after = tuple(label if dim < first or dim in even else "" for dim, label in enumerate(labels))
    before = tuple(label if after[dim] or label in means else "" for dim, label in enumerate(labels))
    pattern = Pattern(inputs=(before,), outputs=(after,), summed=means)
    ratios = {labels[dim]: Halo(dim, x[dim] // out[dim], x[dim] // out[dim]) for dim in even}
    choices = pattern_choices(pattern, local="mean_share", at=means)
    return (*_sliding(choices, "adaptive", ratios), partial(call))


def per_plane(call: Call) -> tuple[Choice, ...]:
    """Only the dims before space: pooling with indices, bilinear resampling."""
    first = len(call.tensor(0).shape) - _space(call)
    labels = tuple(label if dim < first else "" for dim, label in enumerate(numbered(call.tensor(0).shape)))
    return pattern_choices(Pattern(inputs=(labels,), outputs=(labels,) * len(call.outputs)))


def nearest(call: Call) -> tuple[Choice, ...]:
    """`upsample_nearestNd(x, sizes, scales)`: space too where each row is repeated the same number of times; linear.

    Where a scale is given torch goes by it, whatever the sizes are.
    """
    x, out = call.tensor(0).shape, call.outputs[0].shape
    scales = {2 + at: scale for at, scale in enumerate(_scales(call))}
    labels = tuple(
        label if dim < 2 or _repeats(x[dim], out[dim], scales.get(dim)) else "" for dim, label in enumerate(numbered(x))
    )
    return linear_choices(call, Pattern(inputs=(labels,), outputs=(labels,)), local="nearest")


def _scales(call: Call) -> tuple[Argument, ...]:
    """Those of each dim, as far as they are given: listed, or one after the other."""
    listed = call.argument(2, "scale_factors")
    if isinstance(listed, tuple):
        return listed
    space = _space(call)
    names = ("scales_d", "scales_h", "scales_w")[-space:] if space > 1 else ("scales",)
    return tuple(call.argument(2 + at, name) for at, name in enumerate(names))


def _repeats(size: int, made: int, scale: Argument) -> bool:
    """Whether each of `size` rows is repeated equally often."""
    return made % size == 0 and (scale is None or scale == made // size)


def shuffled(call: Call) -> tuple[Choice, ...]:
    """`pixel_shuffle(x, factor)`, `pixel_unshuffle`: every dim, its outer part; linear."""
    labels = numbered(call.tensor(0).shape)
    return linear_choices(call, Pattern(inputs=(labels,), outputs=(divisible(labels, call.outputs[0].shape),)))


def _windowed(call: Call, padding: tuple[int, ...], dilation: object) -> tuple[Choice, ...]:
    x, space = call.tensor(0).shape, _space(call)
    kernel = broadcast(call.argument(1, "kernel_size"), space, 1)
    stride = broadcast(call.argument(2, "stride", ()), space, 0)
    apart = broadcast(call.argument(4, "dilation", 1), space, 1) if dilation != 1 else (1,) * space
    first, labels = len(x) - space, numbered(x)
    choices = pattern_choices(Pattern(inputs=(labels,), outputs=(divisible(labels, call.outputs[0].shape),)))
    halos = {
        labels[first + at]: Halo(first + at, kernel[at], stride[at] or kernel[at], padding[at], apart[at])
        for at in range(space)
    }
    return _sliding(choices, "window", halos)


def _sliding(choices: tuple[Choice, ...], local: str, halos: Mapping[str, Halo]) -> tuple[Choice, ...]:
    """The choices, those that cut space with their windows."""
    return tuple(replace(one, local=local, halo=(halos[one.name],)) if one.name in halos else one for one in choices)


def _space(call: Call) -> int:
    return int(call.name.removesuffix("_with_indices")[-2])
