"""Faults of ops that are cut: where a piece stands in the whole, what its statistics and its loss are taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from examples.parity.faults.fault import Fault, Plant, replaced
from placer.runtime.spmd import graph_ops
from placer.runtime.spmd.local_ops import FORMS, positions, windows
from placer.runtime.spmd.local_ops import losses as local_losses
from placer.runtime.spmd.local_ops.calls import Given

Tensor = torch.Tensor
Form = Callable[[Given], Tensor]
CUT, HALVES = "cut products", "halves of images"


def form(name: str, change: Callable[[Given], Given]) -> Plant:
    """The local op `name`, given other numbers."""

    @contextmanager
    def planted() -> Iterator[None]:
        real = FORMS[name]
        graph_ops.local_op.cache_clear()
        with mock.patch.dict(FORMS, {name: lambda given: real(change(given))}):
            yield
        graph_ops.local_op.cache_clear()

    return planted


def moved(number: str, by: Callable[[int], int]) -> Callable[[Given], Given]:
    """Another value for a number of the op's place."""

    def change(given: Given) -> Given:
        numbers = tuple((name, by(value) if name == number else value) for name, value in given.local.numbers)
        return replace(given, local=replace(given.local, numbers=numbers))

    return change


def _label_of_own_classes(
    real: Callable[..., tuple[Tensor, Tensor, Tensor | None]], given: Given, smoothing: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    normaliser, label, everything = real(given, smoothing)
    return normaliser, label * (1.0 if given.axis.rank == 0 else 0.5), everything


def _biased(real: Callable[..., None], given: Given, mean: Tensor, variance: Tensor) -> None:
    count = given.place("count")
    real(given, mean, variance * (max(1, count - 1) / count))


def _from_the_first_key(real: Callable[..., Tensor], query: Tensor, key: Tensor, first: int) -> Tensor:
    return real(query, key, 0)


@contextmanager
def _mask_of_the_first_piece() -> Iterator[None]:
    """A piece drops by the part of the mask that belongs to the first piece."""
    dropped = {key: made for key, made in graph_ops.REWRITTEN.items() if key[1] == "dropout"}

    def wrong(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*given: object, start: int, end: int, **kwargs: object) -> Tensor:
            return real(*given, start=0, end=end - start, **kwargs)

        return call

    with mock.patch.dict(graph_ops.REWRITTEN, {key: wrong(made) for key, made in dropped.items()}):  # type: ignore[arg-type]
        yield


def _padded_elsewhere(given: Given) -> Given:
    return moved("behind", lambda rows: rows - 1)(moved("before", lambda rows: rows + 1)(given))


FAULTS = (
    Fault(name="ids looked up one row further in a piece of the table", subject=CUT,
          plant=form("vocabulary", moved("start", lambda start: start + 1 if start else start))),
    Fault(name="the score of labels halved where another rank has them", subject=CUT,
          plant=lambda: replaced(local_losses._sums, _label_of_own_classes)),
    Fault(name="batch statistics divided by a rank's own count", subject=HALVES,
          plant=form("batch_norm", moved("count", lambda count: count // 2))),
    Fault(name="running variance of pieces biased", subject=HALVES, plant=lambda: replaced(windows._note, _biased)),
    Fault(name="windows of a piece padded by one row more before, one less behind", subject=HALVES,
          plant=form("window", _padded_elsewhere)),
    Fault(name="queries of a piece see the keys of the first piece", subject="attention by queries",
          plant=lambda: replaced(positions.causal_mask, _from_the_first_key)),
    Fault(name="a piece drops by the mask of the first piece", subject="dropout by rows of the sequence",
          plant=_mask_of_the_first_piece),
)  # fmt: skip
