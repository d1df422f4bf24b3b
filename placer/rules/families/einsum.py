"""einsum. Its FLOPs: products of operands two by two from the left, as torch does without a path of its own.

    a, b -> result of letters that the rest or the output names     one product, batch x (m x k) by (k x n)

with batch = letters of both that stay, k = letters of both that do not, m and n = those of one side. A letter that only
one operand has and nobody needs is summed before, which is no product.

Its splits: letters of the result freely, the others give partial sums.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from string import ascii_uppercase

from placer.rules.calls import Call, Value, Work, gradients
from placer.rules.layouts import Choice
from placer.rules.patterns import named_dims, summed_choices

Named = tuple[str, Value]


def einsum_work(call: Call) -> Work:
    """`einsum("ab,bc->ac", operands)` of any number of operands, with or without a result and dots."""
    equation = call.arguments[0]
    operands = list(call.tensors)
    if not isinstance(equation, str):
        raise TypeError(f"{call.target} without an equation is not counted; register a rule of your own")
    inputs, output = _letters(equation.replace(" ", ""), operands)
    named = list(zip(inputs, operands, strict=True))
    sizes: dict[str, int] = {}
    for letters, value in named:  # an operand may have one of what others have many of
        sizes |= {letter: max(size, sizes.get(letter, 1)) for letter, size in zip(letters, value.shape, strict=True)}
    found, (first, *rest) = Work(), named
    for index, second in enumerate(rest):
        needed = set(output).union(*(letters for letters, _ in rest[index + 1 :]))
        step, first = _product(first, second, needed, sizes)
        found = _both(found, step)
    return found


def _product(first: Named, second: Named, needed: set[str], sizes: dict[str, int]) -> tuple[Work, Named]:
    """The work of one product, and what it gives."""
    left, right = set(first[0]), set(second[0])
    shared = left & right
    own_left, own_right = ((side - shared) & needed for side in (left, right))
    kept = shared & needed
    work = gradients(
        first[1], second[1],
        batch=_size(kept, sizes), m=_size(own_left, sizes), n=_size(own_right, sizes), k=_size(shared - needed, sizes),
    )  # fmt: skip
    letters = "".join(sorted(kept | own_left | own_right))
    shape = tuple(sizes[letter] for letter in letters)
    requires = first[1].requires_grad or second[1].requires_grad
    return work, (letters, Value(shape, first[1].item_bytes, requires))


def _size(letters: set[str], sizes: dict[str, int]) -> int:
    return prod(sizes[letter] for letter in letters)


def _letters(equation: str, operands: list[Value]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; dots become capitals that the equation does not use."""
    given, arrow, output = equation.partition("->")
    free = [letter for letter in ascii_uppercase if letter not in equation]
    inputs, longest = [], ""
    for text, value in zip(given.split(","), operands, strict=True):
        hidden = len(value.shape) - len(text.replace("...", ""))
        dots = "".join(free[:hidden][::-1])
        longest = max(longest, dots, key=len)
        inputs.append(text.replace("...", dots))
    if not arrow:
        every = "".join(given.split(",")).replace(".", "")
        output = "..." + "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    return inputs, output.replace("...", longest)


def _both(first: Work, second: Work) -> Work:
    return replace(first, forward=first.forward + second.forward, backward=first.backward + second.backward)


def einsum(call: Call) -> tuple[Choice, ...]:
    """`einsum("ab,bc->ac", tensors)`; the dims that dots stand for have letters of their own."""
    equation = call.arguments[0]
    if not isinstance(equation, str):
        return ()
    operands, result = _letters(equation.replace(" ", ""), list(call.tensors))
    inputs = tuple(named_dims(value.shape, *letters) for value, letters in zip(call.tensors, operands, strict=True))
    # A letter twice in one operand is a diagonal, which no piece has.
    twice = {letter for letters in operands for letter in letters if letters.count(letter) > 1}
    inputs = tuple(tuple("" if label in twice else label for label in labels) for labels in inputs)
    return summed_choices(call, inputs, tuple("" if letter in twice else letter for letter in result))
