"""Which sizes a choice can cut: legal(choice, call, degree), and the rows that a window reads at each rank."""

from __future__ import annotations

from placer.errors import UsageError
from placer.io.refusals import short
from placer.rules.calls import Call
from placer.rules.layouts import Choice, Cut, Rows, piece, wanted


def legal(choice: Choice, call: Call, degree: int) -> bool:
    """Whether the call's sizes can be cut so: they divide, or the choice allows uneven pieces and none is empty."""
    cuts = choice.cuts(call)
    if any(count % degree for count in choice.counts) or any(size % (lay.every or lay.parts) for size, lay in cuts):
        return False
    if any(lay.every % degree for _, lay in cuts):
        return False
    sizes = [lay.every or size // lay.parts for size, lay in cuts]
    if choice.uneven or any(choice.halo):
        return all(size >= degree for size in sizes) and _reaches(choice, call, degree)
    return all(size % degree == 0 for size in sizes)


def _reaches(choice: Choice, call: Call, degree: int) -> bool:
    """Every rank's window reads some row of the input, not padding alone."""
    windowed = [number for number, halo in enumerate(choice.halo) if halo is not None]
    rows = (window_rows(choice, call, number, degree, rank) for number in windowed for rank in range(degree))
    return all(one.end > one.start for one in rows)


def sizes_agree(call: Call, choice: Choice) -> bool:
    """Whether all cut dims have one size, so that uneven pieces fit each other."""
    return len({size for size, _ in choice.cuts(call)}) <= 1


def result_dim(choice: Choice, call: Call) -> int:
    """The dim of the first result that is cut."""
    lay = choice.outputs[0].value
    if not isinstance(lay, Cut):
        raise UsageError(f"{call.target} cut as {short(repr(choice.name))} has no cut result")
    return lay.dim


def window_rows(choice: Choice, call: Call, number: int, degree: int, rank: int) -> Rows:
    """The rows of windowed argument `number` that the rank reads."""
    halo = choice.halo[number]
    if halo is None:
        raise UsageError(f"argument {number} of {call.target} has no window")
    made = piece(call.outputs[0].shape[result_dim(choice, call)], degree, rank)
    return wanted(halo, call.tensors[number].shape[halo.dim], *made)
