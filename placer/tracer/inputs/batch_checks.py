"""Whether a batch fits a model, asked before it is captured: names against forward's own, rows against each other.

What only torch can know (sizes, types) fails in the capture; `hints` then says what about the batch looks odd.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from math import prod

from torch import nn

from placer.errors import UsageError
from placer.io.bounds import MOST_COUNTED

# Inputs with one entry per row of the batch, whatever else they hold; other inputs (a mask, a table) may have none.
_BY_ROW = ("labels", "label", "targets", "target", "input_ids")
# A name as like another as this is a slip of the pen.
_ALIKE = 0.8
# Bytes of a number of the widest type that torch has (complex128).
_WIDEST = 16


def input_names(model: nn.Module) -> tuple[str, ...]:
    """What forward takes by name, in its order."""
    return tuple(one.name for one in _formal(model) if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL))


def example_batch(model: nn.Module, text: str) -> str:
    """How to write the batch `text` with the names of the inputs of forward that must be given."""
    names = _required(model) or input_names(model)[:1] or ("x",)
    return ",".join(f"{name}={text}" for name in names)


def require_names(model: nn.Module, given: Iterable[str], *, own_loss: bool) -> None:
    """Raise UsageError for names that forward does not take and for what it needs and is not given, or not by name.

    own_loss: what forward does not take is for the caller's loss.
    """
    names, known = tuple(given), input_names(model)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in _formal(model))
    missing = [name for name in _required(model) if name not in names]
    placed = [one.name for one in _formal(model) if one.kind is one.POSITIONAL_ONLY]
    if placed:
        raise UsageError(
            f"forward of {type(model).__name__} takes {_list(tuple(placed))} by place alone, and inputs are given by "
            "name; leave out the / among its parameters, or wrap it in a module that takes them by name"
        )
    for name in names:
        like = difflib.get_close_matches(name, set(known) - set(names), n=1, cutoff=_ALIKE)
        if name not in known and (like or missing or not (takes_any or own_loss)):
            meant = f"did you mean {like[0]}? " if like else ""
            loss = "" if like or own_loss else "; where a loss reads it, give that (--loss FILE:FUNCTION, loss_fn=)"
            takes = f"{meant}{_takes(model, known)}{loss}"
            raise UsageError(f"forward of {type(model).__name__} has no input {name!r}; {takes}")
    if missing:
        raise UsageError(f"the batch lacks {', '.join(missing)}; {_takes(model, known)}, the batch has {_list(names)}")


def require_countable(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError where an input has more bytes than 63 bits count."""
    for name, shape in shapes.items():
        if prod(shape) > MOST_COUNTED // _WIDEST:
            raise UsageError(
                f"the batch's {name} is {'x'.join(map(str, shape))}, more than any memory holds; give less"
            )


def require_rows(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError where inputs that go row by row have different numbers of rows."""
    (first, rows), *_ = [(name, shape[0]) for name, shape in shapes.items() if shape] or [("", 0)]
    for name, shape in shapes.items():
        if name.endswith(_BY_ROW) and shape and shape[0] != rows:
            raise UsageError(
                f"the batch has {rows} rows in {first} and {shape[0]} in {name}; give all inputs the same rows"
            )


def hints(shapes: Mapping[str, tuple[int, ...]], guessed: tuple[str, ...]) -> str:
    """What may have made a capture fail: inputs that do not have the batch's rows, types that were `guessed`."""
    rows = next((shape[0] for shape in shapes.values() if shape), 0)
    odd = [f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items() if shape[:1] not in ((rows,), (1,))]
    rows_hint = f". Not of the batch's {rows} rows, so taken whole for every row: {', '.join(odd)}" if odd else ""
    said = ",".join(f"{name}={'x'.join(map(str, shapes[name]))}:int64" for name in guessed[-1:])
    return f"{rows_hint}. No type was given for {', '.join(guessed)}: write {said} for integers" if said else rows_hint


def _formal(model: nn.Module) -> list[inspect.Parameter]:
    return list(inspect.signature(model.forward).parameters.values())


def _required(model: nn.Module) -> tuple[str, ...]:
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(one.name for one in _formal(model) if one.kind in plain and one.default is one.empty)


def _takes(model: nn.Module, known: tuple[str, ...]) -> str:
    return f"it takes {_list(known[:8])}{', ...' if len(known) > 8 else ''}"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing by name"
