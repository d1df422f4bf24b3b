"""Convolutions in 1 to 3 dims.

Their FLOPs: groups x (positions by output channels by input channels and kernel) as matrix products. The weight
gradient of a grouped convolution costs what its forward costs. torch.utils.flop_counter counts it `groups` times
(torch 2.13, `conv_backward_flop` multiplies all output by all input channels), which no kernel does.

Their splits: batch, channels in and out, groups, and space as a sliding window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from placer.rules.calls import Argument, Call, Value, Work, gradients
from placer.rules.layouts import Choice, Halo
from placer.rules.patterns import Labels, Pattern, broadcast, integer, named_dims, pattern_choices


def convolution_work(call: Call) -> Work:
    """The products of `convNd`."""
    return _regular_work(call.tensor(0), call.tensor(1), call.outputs[0], _groups(call, 6))


def transposed_convolution_work(call: Call) -> Work:
    """The products of `conv_transposeNd`."""
    return _transposed_work(call.tensor(0), call.tensor(1), _groups(call, 6))


def any_convolution_work(call: Call) -> Work:
    """The products of `convolution`, transposed or not."""
    x, w, groups = call.tensor(0), call.tensor(1), _groups(call, 8)
    if call.argument(6, "transposed", False):
        return _transposed_work(x, w, groups)
    return _regular_work(x, w, call.outputs[0], groups)


def _regular_work(x: Value, w: Value, out: Value, groups: int) -> Work:
    outputs, inputs, *kernel = w.shape
    space = len(kernel)
    positions = out.elements // out.shape[-space - 1]
    return gradients(x, w, batch=groups, m=positions, n=outputs // groups, k=inputs * prod(kernel))


def _transposed_work(x: Value, w: Value, groups: int) -> Work:
    inputs, outputs, *kernel = w.shape
    positions = x.elements // x.shape[-len(kernel) - 1]
    return gradients(x, w, batch=groups, m=positions, n=outputs * prod(kernel), k=inputs // groups)


def _groups(call: Call, position: int) -> int:
    found = call.argument(position, "groups", 1)
    if not isinstance(found, int):
        raise TypeError(f"groups of {call.target} is {found!r}, not a number")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How the window of a convolution slides, a number for each spatial dim."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def names(self) -> Labels:
        """Labels of the spatial dims."""
        return tuple(f"space {at}" for at in range(len(self.kernel)))

    def halo(self, at: int, dim: int, *, transposed: bool = False) -> Halo:
        """The window over spatial dim `at`, which is dim `dim` of the input."""
        sizes = (self.kernel[at], self.stride[at], self.padding[at], self.dilation[at])
        return Halo(dim, *sizes, transposed=transposed)


def convolution(call: Call) -> tuple[Choice, ...]:
    """`convNd(x, w, bias, stride, padding, dilation, groups)`: w is (out, in / groups, *kernel)."""
    return _regular(call, _geometry(call, dilation=5, groups=6))


def transposed_convolution(call: Call) -> tuple[Choice, ...]:
    """`conv_transposeNd(x, w, bias, stride, padding, output_padding, groups, dilation)`."""
    return _transposed(call, _geometry(call, dilation=7, groups=6))


def any_convolution(call: Call) -> tuple[Choice, ...]:
    """`convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups)`."""
    geometry = _geometry(call, dilation=5, groups=8)
    return (_transposed if call.argument(6, "transposed", False) is True else _regular)(call, geometry)


def _geometry(call: Call, *, dilation: int, groups: int) -> Geometry:
    kernel = call.tensor(1).shape[2:]
    apart = broadcast(call.argument(dilation, "dilation", 1), len(kernel), 1)
    return Geometry(
        kernel=kernel,
        stride=broadcast(call.argument(3, "stride", 1), len(kernel), 1),
        padding=_padding(call.argument(4, "padding", 0), kernel, apart),
        dilation=apart,
        groups=integer(call.argument(groups, "groups", 1), 1),
    )


def _padding(padding: Argument, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    if padding == "same":
        return tuple(apart * (size - 1) // 2 for size, apart in zip(kernel, dilation, strict=True))
    return (0,) * len(kernel) if padding == "valid" else broadcast(padding, len(kernel), 0)


def _regular(call: Call, geometry: Geometry) -> tuple[Choice, ...]:
    return _choices(call, geometry, ("out", "in"), transposed=False)


def _transposed(call: Call, geometry: Geometry) -> tuple[Choice, ...]:
    """w is (in, out / groups, *kernel)."""
    return _choices(call, geometry, ("in", "out"), transposed=True)


def _choices(call: Call, geometry: Geometry, weight: tuple[str, str], *, transposed: bool) -> tuple[Choice, ...]:
    space = ("",) * len(geometry.kernel)
    grouped = geometry.groups > 1
    if grouped:
        weight = ("groups", "")
    w = (*named_dims(call.tensor(1).shape[:2], *weight), *space)
    inner, outer = ("groups", "groups") if grouped else ("in", "out")
    x = _image(call.tensor(0).shape, inner, geometry)
    # What one row grows into (a transposed window, padding) is not cut: there is nothing to cut in the input.
    y = tuple(
        "" if label in geometry.names and label not in x else label
        for label in _image(call.outputs[0].shape, outer, geometry)
    )
    bias = tuple((outer if value.shape[0] != 1 else "",) for value in call.tensors[2:])
    pattern = Pattern(
        inputs=(x, w, *bias), outputs=(y,), summed=() if grouped else tuple({"in"} & {*x}), added=frozenset({2})
    )
    return tuple(_finished(choice, geometry, x, transposed=transposed) for choice in pattern_choices(pattern))


def _image(shape: tuple[int, ...], channels: str, geometry: Geometry) -> Labels:
    lead = ("batch",) if len(shape) > len(geometry.kernel) + 1 else ()
    return named_dims(shape, *lead, channels, *geometry.names)


def _finished(choice: Choice, geometry: Geometry, x: Labels, *, transposed: bool) -> Choice:
    if choice.name == "groups":
        return replace(choice, local="groups", counts=(geometry.groups,))
    if choice.name not in geometry.names:
        return choice
    halo = geometry.halo(geometry.names.index(choice.name), x.index(choice.name), transposed=transposed)
    windows = (halo, *(None for _ in choice.inputs[1:]))
    return replace(choice, local="transposed_window" if transposed else "window", halo=windows)
