"""named("b s h, h n -> b s n"): a split rule from the names of dims, for ops of one's own.

letters of the result      may be cut: the tensors that have them are cut, the others whole
letters that vanish        are summed over: cut, they give partial sums
+n                         an operand that is added to the sum: it enters in shares where the result is partial
h!                         a letter that must stay whole
...                        any dims in front, each may be cut

register_split("mylib::scan", named("b s! h, h n -> b s! n"))
register_split("mylib::blur", named("b c h -> b c h", windows={"h": lambda call: Halo(2, kernel=3, padding=1)}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from placer.errors import UsageError
from placer.rules.calls import Call
from placer.rules.layouts import Choice, Cut, Halo
from placer.rules.splits.patterns import Labels, Pattern, named_dims, pattern_choices, tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    letters: Labels
    added: bool = False
    open: bool = False

    def labels(self, shape: tuple[int, ...], fixed: frozenset[str]) -> Labels:
        if len(shape) < len(self.letters) or (len(shape) > len(self.letters) and not self.open):
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
        shapes = [value.shape for value in tensors(call)]
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
