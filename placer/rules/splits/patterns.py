"""From named dims to choices: every tensor of an op gets a label for each dim, and a label is what may be cut.

    linear: x (rows, k), w (n, k), +bias (n) -> (rows, n)
        rows   x cut, w and bias shared       -> cut
        n      w and bias cut, x shared       -> cut
        k      x and w cut, bias in shares    -> partial: k is in no result, and the op is linear in it

A dim labelled "" is never cut; neither is one of size 1, which is broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from placer.rules.calls import Argument, Call, Value
from placer.rules.layouts import SAME, SHARED, SUMMED, Choice, Cut, State, cut

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Labels of the dims of each tensor argument and of each result.

    summed: labels over which the op is a sum, so that pieces give a partial result. added: the arguments (by number)
    that are added to that sum and so count once.
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    summed: Labels = ()
    added: frozenset[int] = frozenset()

    @property
    def labels(self) -> Labels:
        """Every label that may be cut, in order of appearance, those of results first."""
        found = [label for labels in (*self.outputs, *self.inputs) for label in labels if label]
        return tuple(label for label in dict.fromkeys(found) if label in self.summed or self._in_every_result(label))

    def _in_every_result(self, label: str) -> bool:
        return bool(self.outputs) and all(labels.count(label) == 1 for labels in self.outputs)


def tensors(call: Call) -> tuple[Value, ...]:
    """The tensor arguments in order of appearance, nested lists flattened, keywords last."""
    found: list[Value] = []

    def visit(argument: Argument) -> None:
        if isinstance(argument, Value):
            found.append(argument)
        elif isinstance(argument, tuple):
            for part in argument:
                visit(part)

    for argument in (*call.arguments, *(value for _, value in call.keywords)):
        visit(argument)
    return tuple(found)


def pattern_choices(pattern: Pattern, *, local: str = "") -> tuple[Choice, ...]:
    """A choice for each label; `local` names what differs in the rank's op."""
    return tuple(replace(along(pattern, label), local=local) for label in pattern.labels)


def along(pattern: Pattern, label: str) -> Choice:
    """The choice that cuts `label`."""
    summed = label in pattern.summed
    inputs = tuple(
        _state(labels, label, SUMMED if summed and number in pattern.added else SHARED)
        for number, labels in enumerate(pattern.inputs)
    )
    return Choice(name=label, inputs=inputs, outputs=tuple(_state(labels, label, SUMMED) for labels in pattern.outputs))


def _state(labels: Labels, label: str, otherwise: State) -> State:
    return cut(labels.index(label)) if label in labels else otherwise


def whole(call: Call) -> Choice:
    """Every rank does all of it."""
    return Choice(name="whole", inputs=(SAME,) * len(tensors(call)), outputs=(SAME,) * len(call.outputs))


def deferred(call: Call) -> Choice:
    """Every rank does all of it, and the sum of partial gradients waits: backward is linear in what it is given."""
    return Choice(name="deferred", inputs=(SHARED,) * len(tensors(call)), outputs=(SHARED,) * len(call.outputs))


def partial(call: Call, summed: frozenset[int] | None = None) -> Choice:
    """A linear op applied to each rank's summand: of the tensor arguments `summed` (default: all) together."""
    count = len(tensors(call))
    states = tuple(SUMMED if summed is None or number in summed else SHARED for number in range(count))
    name = "partial" if summed is None or len(summed) == count else f"partial {' '.join(map(str, sorted(summed)))}"
    return Choice(name=name, inputs=states, outputs=(SUMMED,) * len(call.outputs))


def numbered(shape: tuple[int, ...], rank: int | None = None) -> Labels:
    """Labels `dim 0`, `dim 1` ... of a tensor that is broadcast to `rank` dims; "" where its size is 1."""
    skipped = (len(shape) if rank is None else rank) - len(shape)
    return tuple("" if size == 1 else f"dim {skipped + dim}" for dim, size in enumerate(shape))


def named_dims(shape: tuple[int, ...], *names: str) -> Labels:
    """The last of `names` for the last dims of `shape`, `lead 0`, `lead 1` ... for those before, "" for size 1."""
    lead = len(shape) - len(names)
    labels = (*(f"lead {dim}" for dim in range(lead)), *names[max(0, -lead) :])
    return tuple("" if size == 1 else label for size, label in zip(shape, labels, strict=True))


def without(labels: Labels, *dims: int) -> Labels:
    """`labels` with those dims never cut."""
    barred = {dim % len(labels) for dim in dims} if labels else set()
    return tuple("" if dim in barred else label for dim, label in enumerate(labels))


def sizes_agree(call: Call, choice: Choice) -> bool:
    """Whether all cut dims have one size, so that uneven pieces fit each other."""
    pairs = (*zip(tensors(call), choice.inputs, strict=True), *zip(call.outputs, choice.outputs, strict=True))
    return len({value.shape[state.value.dim] for value, state in pairs if isinstance(state.value, Cut)}) <= 1


def integer(argument: Argument, default: int = 0) -> int:
    """An argument that is a whole number."""
    return argument if isinstance(argument, int) else default


def integers(argument: Argument) -> tuple[int, ...]:
    """An argument that is a list of whole numbers, or one; a tensor or a truth value is none."""
    if isinstance(argument, tuple) and not isinstance(argument, Value):
        return tuple(part for part in argument if isinstance(part, int))
    return (argument,) if isinstance(argument, int) and not isinstance(argument, bool) else ()


def broadcast(argument: Argument, count: int, default: int) -> tuple[int, ...]:
    """`count` numbers from a list of as many, of one, or from a number; the default where there are none."""
    found = integers(argument) or (default,)
    return found * count if len(found) == 1 else found
