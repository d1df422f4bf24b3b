"""Normalisations: any dim that is not normalised; batch norm also over batch and space, summing its statistics."""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import Call
from placer.rules.layouts import Choice, Inner
from placer.rules.patterns import (
    Labels,
    Pattern,
    all_but,
    integer,
    integers,
    named_dims,
    numbered,
    pattern_choices,
    uncut,
    without,
)


def softmax(call: Call) -> tuple[Choice, ...]:
    """`softmax(x, dim)`, `log_softmax`: every dim but that one."""
    return all_but(call, integer(call.argument(1, "dim", -1), -1))


def layer_norm(call: Call) -> tuple[Choice, ...]:
    """`layer_norm(x, shape, weight, bias, eps)`, `rms_norm`: the dims before `shape`."""
    x = call.tensor(0).shape
    lead = len(x) - len(integers(call.argument(1, "normalized_shape")))
    labels = tuple(label if dim < lead else "" for dim, label in enumerate(numbered(x)))
    outputs = tuple(labels[: len(out.shape)] for out in call.outputs)
    return pattern_choices(Pattern(inputs=(labels, *uncut(call.tensors[1:])), outputs=outputs))


def group_norm(call: Call) -> tuple[Choice, ...]:
    """`group_norm(x, groups, weight, bias, eps)`: batch, and channels in whole groups."""
    x, groups = call.tensor(0).shape, integer(call.argument(1, "num_groups"), 1)
    labels = (*named_dims(x[:2], "batch", "channels"), *("",) * (len(x) - 2))
    choices = _with_channels(call, labels)
    return tuple(
        replace(choice, counts=(groups,), local="groups") if choice.name == "channels" else choice for choice in choices
    )


def batch_norm(call: Call) -> tuple[Choice, ...]:
    """`batch_norm(x, weight, bias, mean, variance, training, momentum, eps, cudnn)`; x is (batch, channels, *space).

    Sums of x and of its square are all-reduced forward, two sums of the gradient backward, where statistics are made.
    """
    labels = _image(call.tensor(0).shape)
    choices = _with_channels(call, labels)
    if call.argument(5, "training", False) is not True:
        return choices
    if _laid_two_ways(call.tensor(0).shape):
        choices = tuple(choice for choice in choices if choice.name != "channels")
    return tuple(choice if choice.name == "channels" else _summing(choice) for choice in choices)


def _laid_two_ways(shape: tuple[int, ...]) -> bool:
    """Whether a dim of one index lets memory with channels first pass for memory with channels last.

    Torch's CPU kernel (2.13) then takes gradients of the one kind for the other, and those of weight and bias are
    wrong; where channels are cut, tensors lie otherwise than the model's own. CLAP's are (rows, mels, time, 1).
    This can go when `test_torch_takes_gradients_of_one_layout_for_another_in_batch_norm` fails.
    """
    others = (shape[0], *shape[2:])
    return len(shape) > 3 and 1 in others and max(shape[2:]) > 1


def instance_norm(call: Call) -> tuple[Choice, ...]:
    """`instance_norm(x, weight, bias, mean, variance, ...)`: channels, and the batch where no statistics are kept."""
    labels = tuple("" if label.startswith("space") else label for label in _image(call.tensor(0).shape))
    if call.argument(3, "running_mean") is not None:
        labels = without(labels, 0)
    return _with_channels(call, labels)


def _with_channels(call: Call, labels: Labels) -> tuple[Choice, ...]:
    """Choices of an op whose other tensors have a number for each channel."""
    others = tuple(named_dims(value.shape, "channels") for value in call.tensors[1:])
    return pattern_choices(Pattern(inputs=(labels, *others), outputs=(labels,)))


def _summing(choice: Choice) -> Choice:
    # The mean, then the variance about it, each with a gradient of its own.
    sums = tuple(
        Inner(collective="all_reduce", backward=backward, sizes=((0, 1),)) for backward in (False, False, True, True)
    )
    return replace(choice, local="batch_norm", inner=sums)


def _image(shape: tuple[int, ...]) -> Labels:
    return named_dims(shape, "batch", "channels", *(f"space {dim}" for dim in range(len(shape) - 2)))
