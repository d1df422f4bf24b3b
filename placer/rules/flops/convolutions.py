"""Rules of convolutions as matrix products: groups x (positions by output channels by input channels and kernel).

The weight gradient of a grouped convolution costs what its forward costs. torch.utils.flop_counter counts it `groups`
times (torch 2.13, `conv_backward_flop` multiplies all output by all input channels), which no kernel does.
"""

from __future__ import annotations

from math import prod

from placer.rules.calls import Call, Value, Work, gradients


def convolution(call: Call) -> Work:
    """`convNd(x, w, bias, stride, padding, dilation, groups)`: w is (out, in / groups, *kernel)."""
    return _regular(call.tensor(0), call.tensor(1), call.outputs[0], _groups(call, 6))


def transposed_convolution(call: Call) -> Work:
    """`conv_transposeNd(x, w, bias, stride, padding, output_padding, groups)`: w is (in, out / groups, *kernel)."""
    return _transposed(call.tensor(0), call.tensor(1), _groups(call, 6))


def any_convolution(call: Call) -> Work:
    """`convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups)`."""
    x, w, groups = call.tensor(0), call.tensor(1), _groups(call, 8)
    if call.argument(6, "transposed", False):
        return _transposed(x, w, groups)
    return _regular(x, w, call.outputs[0], groups)


def _regular(x: Value, w: Value, out: Value, groups: int) -> Work:
    outputs, inputs, *kernel = w.shape
    space = len(kernel)
    positions = out.elements // out.shape[-space - 1]
    return gradients(x, w, batch=groups, m=positions, n=outputs // groups, k=inputs * prod(kernel))


def _transposed(x: Value, w: Value, groups: int) -> Work:
    inputs, outputs, *kernel = w.shape
    positions = x.elements // x.shape[-len(kernel) - 1]
    return gradients(x, w, batch=groups, m=positions, n=outputs * prod(kernel), k=inputs // groups)


def _groups(call: Call, position: int) -> int:
    found = call.argument(position, "groups", 1)
    if not isinstance(found, int):
        raise TypeError(f"groups of {call.target} is {found!r}, not a number")
    return found
