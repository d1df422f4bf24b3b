"""From named dims to choices: every tensor of an op gets a label for each dim, and a label is what may be cut.

    linear: x (rows, k), w (n, k), +bias (n) -> (rows, n)
        rows   x cut, w and bias shared       -> cut
        n      w and bias cut, x shared       -> cut
        k      x and w cut, bias in shares    -> partial: k is in no result, and the op is linear in it

A dim labelled "" is never cut; neither is one of size 1, which is broadcast.

named("b s h, h n -> b s n") is a split rule from the names of dims:

    letters of the result      may be cut: the tensors that have them are cut, the others whole
    letters that vanish        are summed over: cut, they give partial sums
    +n                         an operand that is added to the sum, broadcast: it enters in shares where that is partial
    h!                         a letter that must stay whole
    ...                        any dims in front, each may be cut

    register_split("mylib::scan", named("b s! h, h n -> b s! n"))
    register_split("mylib::blur", named("b c h -> b c h", windows={"h": lambda call: Halo(2, kernel=3, padding=1)}))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from placer.errors import UsageError
from placer.rules.calls import Argument, Call, Value
from placer.rules.layouts import SAME, SHARED, SUMMED, Choice, Cut, Halo, State, cut

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


def pattern_choices(pattern: Pattern, *, local: str = "", at: Collection[str] | None = None) -> tuple[Choice, ...]:
    """A choice for each label; `local` names what differs in the rank's op, of the labels `at` (default: of all)."""
    return tuple(
        replace(along(pattern, label), local=local if at is None or label in at else "") for label in pattern.labels
    )


def linear_choices(call: Call, pattern: Pattern, *, local: str = "") -> tuple[Choice, ...]:
    """The pattern's choices and the sum passed through."""
    return (*pattern_choices(pattern, local=local), partial(call))


def summed_choices(call: Call, inputs: tuple[Labels, ...], result: Labels) -> tuple[Choice, ...]:
    """Every label of the operands that is not in the result is summed over."""
    result = divisible(result, call.outputs[0].shape)
    contracted = dict.fromkeys(label for labels in inputs for label in labels if label and label not in result)
    return pattern_choices(Pattern(inputs=inputs, outputs=(result,), summed=tuple(contracted)))


def all_but(call: Call, *dims: int) -> tuple[Choice, ...]:
    """Every dim but those, of tensors and results of one shape."""
    inputs = tuple(without(numbered(value.shape), *dims) for value in call.tensors)
    return pattern_choices(Pattern(inputs=inputs, outputs=inputs[:1] * len(call.outputs)))


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
    return Choice(name="whole", inputs=(SAME,) * len(call.tensors), outputs=(SAME,) * len(call.outputs))


def deferred(call: Call) -> Choice:
    """Every rank does all of it, and the sum of partial gradients waits: backward is linear in what it is given."""
    return Choice(name="deferred", inputs=(SHARED,) * len(call.tensors), outputs=(SHARED,) * len(call.outputs))


def partial(call: Call, summed: frozenset[int] | None = None) -> Choice:
    """A linear op applied to each rank's summand: of the tensor arguments `summed` (default: all) together."""
    count = len(call.tensors)
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
    return divisible((*(f"lead {dim}" for dim in range(lead)), *names[max(0, -lead) :]), shape)


def divisible(labels: Iterable[str], shape: tuple[int, ...]) -> Labels:
    """`labels` with those of size 1 never cut."""
    return tuple("" if size == 1 else label for label, size in zip(labels, shape, strict=True))


def uncut(values: Iterable[Value]) -> tuple[Labels, ...]:
    """Labels of tensors that are never cut."""
    return tuple(("",) * len(value.shape) for value in values)


def without(labels: Labels, *dims: int) -> Labels:
    """`labels` with those dims never cut."""
    barred = {dim % len(labels) for dim in dims} if labels else set()
    return tuple("" if dim in barred else label for dim, label in enumerate(labels))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    letters: Labels
    added: bool = False
    open: bool = False

    def labels(self, shape: tuple[int, ...], fixed: frozenset[str]) -> Labels:
        if (len(shape) < len(self.letters) and not self.added) or (len(shape) > len(self.letters) and not self.open):
            raise UsageError(f"a tensor of shape {list(shape)} does not fit the dims {' '.join(self.letters)!r}")
        return tuple("" if label in fixed else label for label in named_dims(shape, *self.letters))


def named(
    text: str,
    *,
    split: str | None = None,
    windows: Mapping[str, Callable[[Call], Halo]] | None = None,
) -> Callable[[Call], tuple[Choice, ...]]:
    """The split rule that `text` describes; `split` lists the letters that may be cut (default: all).

    windows: letters whose pieces need rows of their neighbours, with the window over the first argument.
    """
    given, arrow, made = text.partition("->")
    if not arrow:
        raise UsageError(f"{text!r} has no ->: write the dims of the arguments, ->, the dims of the results")
    inputs = tuple(_operand(part) for part in given.split(","))
    outputs = tuple(_operand(part) for part in made.split(","))
    fixed = frozenset(letter.removesuffix("!") for letter in text.replace(",", " ").split() if letter.endswith("!"))
    sliding = dict(windows or {})

    def rule(call: Call) -> tuple[Choice, ...]:
        shapes = [value.shape for value in call.tensors]
        if len(shapes) > len(inputs) or len(call.outputs) != len(outputs):
            raise UsageError(f"{call.target}: {len(shapes)} tensors, {len(call.outputs)} results do not fit {text!r}")
        before = tuple(one.labels(shape, fixed) for one, shape in zip(inputs, shapes, strict=False))
        after = tuple(one.labels(out.shape, fixed) for one, out in zip(outputs, call.outputs, strict=True))
        kept = {label for labels in after for label in labels}
        summed = dict.fromkeys(label for labels in before for label in labels if label and label not in kept)
        added = frozenset(number for number, one in enumerate(inputs) if one.added)
        pattern = Pattern(inputs=before, outputs=after, summed=tuple(summed), added=added)
        choices = (c for c in pattern_choices(pattern) if split is None or c.name in split.split())
        return tuple(
            _slid(choice, sliding[choice.name](call)) if choice.name in sliding else choice for choice in choices
        )

    return rule


def _operand(text: str) -> _Operand:
    stripped = text.strip()
    letters = tuple(letter.removesuffix("!") for letter in stripped.removeprefix("+").split())
    return _Operand(
        letters=tuple(letter for letter in letters if letter != "..."),
        added=stripped.startswith("+"),
        open="..." in letters,
    )


def _slid(choice: Choice, halo: Halo) -> Choice:
    windows = tuple(
        halo if number == 0 and isinstance(s.value, Cut) else None for number, s in enumerate(choice.inputs)
    )
    return replace(choice, halo=windows)
