"""What an op makes of the values of a piece of the batch, from the rules of how it may be split.

A choice of the op's split rule whose cut dims are those that hold the rows says what a piece gets:

    linear: x cut on dim 0, w whole           -> cut on dim 0
    sum over the rows                         -> a part of the sum
    mean over the rows                        -> the piece's mean times its share of the rows: a part of the mean
    a part + something whole, or a number     -> the whole enters times the share: a part
    a part / a part that the batch alone says -> the divisor is summed over all pieces before the step: a part

An op without such a choice mixes rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from placer.rules.calls import MARKED_ROWS, Call
from placer.rules.layouts import PARTIAL, WHOLE, Choice, Cut, Lay
from placer.rules.registry import own_choices, split_choices, split_rule
from placer.rules.rows.piece_values import Mixed, PieceValue, RowNumbers, Standing, row_dims
from placer.rules.rows.row_rules import fills_in_turn, row_mean, row_rule
from placer.rules.rows.row_views import filled, indexed, joined, masked, numbered, renumbers, repeated, reshaped, taken
from placer.rules.splits.fused_dims import divided, in_parts

# Local forms that are the op itself, called with the sizes of the piece.
_ITSELF = (
    "",
    "sizes",
    "repeat",
    "slice",
    "mean_share",
    "mean_loss",
    "dropout",
    "attention_dropout",
    "batch_norm",
    "nearest",
)
_AVERAGES = ("mean_share", "mean_loss")
# Those that are so where rows lie in one of so many first dims: scores have rows in dim 0, space is resized.
_IN_FRONT = {"attention_dropout": 1, "nearest": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOp:
    """What a piece does otherwise than the op on the whole batch.

    shared: the tensor arguments, by number, that enter times the piece's share of the rows. totalled: those of which
    the sum over all pieces enters. mean: the result is a mean over the piece's rows, and counts by their share, or by
    the share of its labels that count (`labels`). statistics: it normalises by the rows at hand (batch norm). number:
    the plain number it takes as its second argument enters times the piece's share. in_turn: it fills places one after
    another with numbers, which must be those of their row.
    """

    shared: tuple[int, ...] = ()
    totalled: tuple[int, ...] = ()
    mean: str = ""
    statistics: bool = False
    number: bool = False
    in_turn: bool = False


SAME_OP = PieceOp()
MEAN_OF_ROWS = PieceOp(mean="rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceResult:
    """The results of an op for a piece, and what the piece does otherwise."""

    values: tuple[PieceValue, ...]
    op: PieceOp = SAME_OP


def piece_result(
    call: Call, given: Sequence[PieceValue], *, repeatable: bool = True, sorted_rows: bool = False
) -> PieceResult:
    """What a piece has of the results of `call` (at MARKED_ROWS rows), whose tensor arguments stand as `given`.

    repeatable: it draws no random number and writes nothing, nor counts rows. sorted_rows: it may be done on rows in an
    order of the piece's own (`own_orders.Orders`).
    """
    if call.pure_name == "type_as" and (given[0].lay is WHOLE or isinstance(given[0].lay, Cut)):  # and another's type
        return _all(call, given[0].lay, repeatable and given[0].given)
    from_batch = repeatable and all(value.given for value in given)
    mixed = next((value.lay for value in given if isinstance(value.lay, Mixed)), None)
    if mixed is not None:
        return _all(call, mixed, False)
    if any(len(row_dims(out.shape)) > 1 for out in call.outputs):
        return _all(call, Mixed("has rows in two dims of its result: every row meets every other"), False)
    if not any(row_dims(out.shape) for out in call.outputs) and all(value.lay is WHOLE for value in given):
        return _all(call, WHOLE, from_batch)
    viewed = _viewed(call, given)
    if viewed is not None:
        return _all(call, viewed, from_batch)
    found = min(_ways(call, given, from_batch, sorted_rows), key=_changes, default=None)
    found = found or _by_row(call, given, from_batch) or _totalled(call, given, from_batch)
    return found or _with_number(call, given) or _all(call, _mixing(call, given), False)


def _viewed(call: Call, given: Sequence[PieceValue]) -> Standing | None:
    """The result of an op whose split rule does not tell all that holds for rows."""
    lays = [value.lay for value in given]
    alone = numbered(call) or filled(call) or reshaped(call, lays[0] if lays else WHOLE)
    placed = indexed(call, lays) or masked(call, lays)
    return alone or placed or joined(call, lays) or taken(call, lays) or repeated(call, lays)


def _by_row(call: Call, given: Sequence[PieceValue], from_batch: bool) -> PieceResult | None:
    """What the op's rule for rows says, where it has one."""
    rule = row_rule(call)
    lays = None if rule is None else rule(call, [value.lay for value in given])
    if lays is None:
        return None
    mean = "rows" if PARTIAL in lays and row_mean(call) else ""
    values = tuple(PieceValue(lay, from_batch and not mean) for lay in lays)
    return PieceResult(values=values, op=PieceOp(mean=mean, in_turn=fills_in_turn(call)))


def _ways(call: Call, given: Sequence[PieceValue], from_batch: bool, sorted_rows: bool) -> Iterator[PieceResult]:
    """Every choice of the op's rule that the values allow."""
    for choice in _choices(call, given, sorted_rows):
        itself = choice.local in (*_ITSELF, "own_numbers") or _row_groups(choice)
        if not itself or any(choice.halo):
            continue
        entering = [
            _entering(value, want.value, call, choice) for value, want in zip(given, choice.inputs, strict=True)
        ]
        lays = [state.value for state in choice.outputs]
        if None in entering or not _fits(call, lays) or not _in_front(choice, lays):
            continue
        op = PieceOp(
            shared=tuple(at for at, how in enumerate(entering) if how == "shared"),
            totalled=tuple(at for at, how in enumerate(entering) if how == "totalled"),
            mean={"mean_share": "rows", "mean_loss": "labels"}.get(choice.local, "") if PARTIAL in lays else "",
            statistics=choice.local == "batch_norm",
        )
        if op.mean == "labels" and (op.totalled or not all(value.given for value in given[1:])):
            continue  # labels are counted piece by piece, before weights of the whole batch are at hand
        plain = from_batch and op in (SAME_OP, MEAN_OF_ROWS)
        numbers = renumbers(call, [value.lay for value in given])
        yield PieceResult(values=tuple(PieceValue(numbers or lay, plain) for lay in lays), op=op)


def _choices(call: Call, given: Sequence[PieceValue], sorted_rows: bool) -> Iterator[Choice]:
    parts = {lay.parts for lay, _ in given if isinstance(lay, Cut) and lay.parts > 1}
    for choice in split_choices(call):
        if choice.name not in ("whole", "deferred"):
            yield choice
            yield from filter(None, (in_parts(call, choice, count) for count in parts))
            if choice.local in _AVERAGES:  # in whatever order the rows come
                yield from (choice.relaid(choice.name, partial(_in_parts, count)) for count in parts)
    if parts:
        yield from divided(call)
    if sorted_rows:
        yield from own_choices(call)


def groups_of_rows(call: Call) -> bool:
    """Whether a convolution has groups for each row, of which a piece has as many for each of its own: kernels that a
    row makes for itself, with the rows among the channels."""
    return any(map(_row_groups, split_choices(call)))


def _row_groups(choice: Choice) -> bool:
    plain = all(state.value == Cut(state.value.dim) for state in choice.inputs if isinstance(state.value, Cut))
    return choice.local == "groups" and plain and choice.counts[0] % MARKED_ROWS == 0


def _in_parts(count: int, lay: Cut) -> Cut:
    return lay._replace(parts=count)


def _entering(value: PieceValue, want: Lay, call: Call, choice: Choice) -> str | None:
    """How a value becomes what the choice wants: as it is, `shared`, `totalled`; None where it cannot."""
    lay = value.lay
    if lay == want:
        return "as it is"
    if isinstance(lay, RowNumbers):
        counts = choice.local == "own_numbers" or renumbers(call, [lay]) is not None
        return "as it is" if counts and want == Cut(lay.dim) else None
    if lay is WHOLE and want is PARTIAL:
        return "shared"
    return "totalled" if lay is PARTIAL and want is WHOLE and value.given else None


def _fits(call: Call, lays: Sequence[Lay]) -> bool:
    """Whether the rows lie in the results where they are cut, and nowhere else."""
    return all(
        row_dims(out.shape) == ([lay.dim] if isinstance(lay, Cut) else [])
        for out, lay in zip(call.outputs, lays, strict=True)
    )


def _in_front(choice: Choice, lays: Sequence[Lay]) -> bool:
    """Whether rows lie where the op itself does with a piece of them what it does with all."""
    if choice.local != "dropout" and choice.local not in _IN_FRONT:
        return True
    dim = _row_dim(lays)
    return dim is not None and dim < _IN_FRONT.get(choice.local, dim + 1)


def _row_dim(lays: Sequence[Lay]) -> int | None:
    return next((lay.dim for lay in lays if isinstance(lay, Cut)), None)


def _changes(result: PieceResult) -> tuple[int, int, bool]:
    return len(result.op.totalled), len(result.op.shared), bool(result.op.mean)


def _totalled(call: Call, given: Sequence[PieceValue], from_batch: bool) -> PieceResult | None:
    """The op on sums over all pieces, which the batch alone says."""
    known = all(lay is WHOLE or (lay is PARTIAL and value) for lay, value in given)
    if not known or any(row_dims(out.shape) for out in call.outputs):
        return None
    parts = tuple(at for at, value in enumerate(given) if value.lay is PARTIAL)
    values = tuple(PieceValue(WHOLE, False) for _ in call.outputs)
    return PieceResult(values=values, op=PieceOp(totalled=parts))


def _with_number(call: Call, given: Sequence[PieceValue]) -> PieceResult | None:
    """A part of a sum, and a number beside it: `loss + 1`, `2 - loss`."""
    name = call.target.removeprefix("aten::")
    numbers = len(given) == 1 and given[0].lay is PARTIAL and isinstance(call.argument(1, ""), int | float)
    if name not in ("add", "sub", "rsub") or not numbers or not call.outputs[0].requires_grad:
        return None
    return PieceResult(values=(PieceValue(PARTIAL),), op=PieceOp(number=True))


def _mixing(call: Call, given: Sequence[PieceValue]) -> Mixed:
    if any(value.lay is PARTIAL for value in given):
        return Mixed("takes a sum over the batch, of which a piece has only a part")
    if split_rule(call) is None and row_rule(call) is None:
        return Mixed("has no rule that says how it treats rows (placer.rules.register_split gives it one)")
    if any(isinstance(value.lay, RowNumbers) for value in given):
        return Mixed("reckons with the numbers of rows, which a piece counts from its own first row")
    shapes = zip(call.tensors, (value.lay for value in given), strict=True)
    dims = [f"dim {lay.dim} of {len(value.shape)}" for value, lay in shapes if isinstance(lay, Cut)]
    where = ", ".join(dict.fromkeys(dims)) or "its sizes"
    if any(choice.local in ("dropout", "attention_dropout") for choice in split_choices(call)):
        return Mixed(f"draws a mask by rows, which lie between each other or behind other dims ({where})")
    return Mixed(f"takes rows of the batch together ({where})")


def _all(call: Call, lay: Standing, from_batch: bool) -> PieceResult:
    return PieceResult(values=tuple(PieceValue(lay, from_batch) for _ in call.outputs))
