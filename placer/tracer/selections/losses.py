"""torch's losses of selections: of each row its own, and then the sum or the mean of as many as are taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from placer.tracer.selections.reductions import over_rows
from placer.tracer.selections.rowwise import rowwise
from placer.tracer.selections.selected import Selected, first_of, is_selected, refused

#: By the name of the argument: what it is put to in the rows that are not taken.
FINITE = {"binary_cross_entropy": {"input": 0.5, "target": 0.5}}
LOSSES = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div", "soft_margin_loss", "hinge_embedding_loss", "poisson_nll_loss",
    "margin_ranking_loss", "triplet_margin_loss",
})  # fmt: skip
OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})


def loss(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The loss of selections of the same rows."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    reduction = given.pop("reduction", "mean")
    _require_plain(given)
    one = first_of(given)
    if name == "triplet_margin_loss" and one.ndim < 2:
        refused(f"{name} over the rows of a selection")
    for key, otherwise in FINITE.get(name, {}).items():
        if is_selected(given.get(key)):
            given[key] = Selected(given[key].rows.kept(given[key].values, otherwise), one.rows)
    if given.get("weight") is not None and not name.startswith("binary_cross_entropy"):
        refused(f"{name} with weights")
    each = rowwise(func, name, (), {**given, "reduction": "none"})
    if reduction == "batchmean":
        return over_rows(torch.sum, "sum", None, (each,), {}) / one.rows.count.to(each.dtype)
    return each if reduction == "none" else _whole(each, reduction)


def loss_of_classes(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The loss of selected logits (n, C, ...) and classes: rows that are not taken have the class that counts not."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    _require_plain(given)
    logits, target, weight = given["input"], given["target"], given.get("weight")
    if not (is_selected(logits) and is_selected(target)) or logits.rows.name != target.rows.name or is_selected(weight):
        refused(f"{name} of a selection and of what is none, or of other rows")
    if logits.ndim < 2 or (name == "nll_loss" and target.values.is_floating_point()):
        refused(f"{name} over the rows of a selection")
    if target.values.is_floating_point():
        reduction = given.pop("reduction", "mean")
        each = rowwise(func, name, (), {**given, "reduction": "none"}, beside=True)
        return each if reduction == "none" else _whole(each, reduction)
    counted = target.rows.kept(target.values, given.get("ignore_index", -100))
    result = func(**{**given, "input": logits.values, "target": counted})
    return Selected(result, logits.rows) if given.get("reduction", "mean") == "none" else result


def _whole(each: Selected, reduction: str) -> Any:
    if reduction not in ("mean", "sum"):
        refused(f"reduction {reduction!r}")
    return over_rows(getattr(torch, reduction), reduction, None, (each,), {})


def _require_plain(given: Mapping[str, Any]) -> None:
    if given.get("size_average") is not None or given.get("reduce") is not None:
        refused("size_average and reduce of losses: say reduction")
