"""Losses: cut on the batch they give partial sums, weighted by the count of the whole; cross entropy on classes too."""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import Call
from placer.rules.layouts import SAME, SHARED, Choice, Inner, cut
from placer.rules.patterns import Labels, Pattern, integer, named_dims, numbered, pattern_choices

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def cross_entropy(call: Call) -> tuple[Choice, ...]:
    """`cross_entropy_loss(scores, target, weight, reduction, ignore_index, smoothing)`, `nll_loss(...)`.

    The mean divides by the count of labels that count, over all ranks: one number is all-reduced.
    """
    scores, target = call.tensor(0), call.tensor(1)
    if len(scores.shape) < 2:
        return ()
    labels = _scores(scores.shape)
    classes = len(target.shape) < len(scores.shape)
    places = (labels[0], *labels[2:])
    given = (labels, places if classes else labels, *(("",) for _ in call.tensors[2:]))
    mean = _reduction(call, 3) == MEAN
    local = "" if not mean else "mean_loss" if classes else "mean_share"
    choices = pattern_choices(_losses(call, given, places), local=local)
    if not classes:
        return choices
    count = (Inner(collective="all_reduce", backward=False),) if mean else ()
    return (*(replace(choice, inner=count) for choice in choices), *_vocabulary(call))


def _vocabulary(call: Call) -> tuple[Choice, ...]:
    """Classes cut: the largest score, the sum of exponentials and the label's score are all-reduced, per position."""
    scores = call.tensor(0).shape
    if "cross_entropy" not in call.target or len(call.tensors) > 2 or scores[1] == 1:
        return ()
    places = tuple((0, dim) for dim in range(len(scores)) if dim != 1)
    smoothed = call.argument(5, "label_smoothing", 0.0) != 0.0
    inner = (
        Inner(collective="all_reduce", backward=False, sizes=places, reduce="max"),
        Inner(collective="all_reduce", backward=False, sizes=places, times=3 if smoothed else 2),
    )
    states = (cut(1), SHARED)
    return (Choice(name="classes", inputs=states, outputs=(SAME,), local="vocabulary_loss", inner=inner),)


def elementwise(call: Call) -> tuple[Choice, ...]:
    """`mse_loss(x, y, reduction)`, `l1_loss`, `smooth_l1_loss`, `huber_loss`, `binary_cross_entropy...`."""
    rank = max(len(value.shape) for value in call.tensors)
    inputs = tuple(numbered(value.shape, rank) for value in call.tensors)
    widest = max(inputs, key=lambda labels: sum(map(bool, labels)))
    if call.tensor(0).shape != call.tensor(1).shape and not _in_one(call, inputs, widest):
        # torch 2.13's backward takes no broadcast target; its Python functions expand it before.
        return ()
    position = 3 if "binary_cross_entropy" in call.target else 2
    if call.target.endswith("with_logits"):
        position = 4
    local = "mean_share" if _reduction(call, position) == MEAN else ""
    return pattern_choices(_losses(call, inputs, widest, position), local=local)


def _in_one(call: Call, inputs: tuple[Labels, ...], widest: Labels) -> bool:
    """Whether a loss that torch makes of products broadcasts one side to the other."""
    return call.target.endswith("::kl_div") and all({*labels} <= {*widest, ""} for labels in inputs)


def _losses(call: Call, inputs: tuple[Labels, ...], places: Labels, position: int = 3) -> Pattern:
    if _reduction(call, position) == NONE:
        return Pattern(inputs=inputs, outputs=(places,))
    return Pattern(inputs=inputs, outputs=((),), summed=tuple(label for label in places if label))


def _scores(shape: tuple[int, ...]) -> Labels:
    labels = named_dims(shape, "batch", "classes", *(f"space {dim}" for dim in range(len(shape) - 2)))
    return tuple("" if label == "classes" else label for label in labels)


def _reduction(call: Call, position: int) -> int:
    return integer(call.argument(position, "reduction", MEAN), MEAN)
