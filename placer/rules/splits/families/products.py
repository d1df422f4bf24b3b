"""Products: rows and columns freely, the contracted dim gives partial sums, a bias enters them in shares."""

from __future__ import annotations

from placer.rules.calls import Call
from placer.rules.layouts import Choice
from placer.rules.splits.patterns import Labels, Pattern, named_dims, pattern_choices, tensors


def linear(call: Call) -> tuple[Choice, ...]:
    """`linear(x, w, bias)`: x (..., k), w (n, k), bias (n); w and bias may lack n."""
    x, w = call.tensor(0), call.tensor(1)
    wide = len(w.shape) == 2
    lead = named_dims(x.shape, "k")
    weight = named_dims(w.shape, "n", "k")
    result = (*lead[:-1], *weight[:1]) if wide else lead[:-1]
    bias = tuple(weight[:1] if wide and value.shape else ("",) * len(value.shape) for value in tensors(call)[2:])
    return _summed(call, (lead, weight, *bias), result, added={2})


def mm(call: Call) -> tuple[Choice, ...]:
    """`mm(a, b)`: (m, k) by (k, n)."""
    a, b = call.tensor(0), call.tensor(1)
    return _summed(call, (named_dims(a.shape, "m", "k"), named_dims(b.shape, "k", "n")), ("m", "n"))


def addmm(call: Call) -> tuple[Choice, ...]:
    """`addmm(bias, a, b)`, the bias broadcast to (m, n)."""
    bias, a, b = (call.tensor(position) for position in range(3))
    inputs = (
        named_dims(bias.shape, *("m", "n")[2 - len(bias.shape) :]) if bias.shape else (),
        named_dims(a.shape, "m", "k"),
        named_dims(b.shape, "k", "n"),
    )
    return _summed(call, inputs, ("m", "n"), added={0})


def bmm(call: Call) -> tuple[Choice, ...]:
    """`bmm(a, b)`: (batch, m, k) by (batch, k, n)."""
    a, b = call.tensor(0), call.tensor(1)
    inputs = (named_dims(a.shape, "batch", "m", "k"), named_dims(b.shape, "batch", "k", "n"))
    return _summed(call, inputs, ("batch", "m", "n"))


def baddbmm(call: Call) -> tuple[Choice, ...]:
    """`baddbmm(bias, a, b)`, the bias broadcast."""
    names = ("batch", "m", "n")
    bias, a, b = (call.tensor(position) for position in range(3))
    inputs = (
        named_dims(bias.shape, *names[3 - len(bias.shape) :]) if bias.shape else (),
        named_dims(a.shape, "batch", "m", "k"),
        named_dims(b.shape, "batch", "k", "n"),
    )
    return _summed(call, inputs, names, added={0})


def matmul(call: Call) -> tuple[Choice, ...]:
    """`matmul(a, b)`: vectors and broadcast leading dims as in numpy."""
    a, b = call.tensor(0).shape, call.tensor(1).shape
    rank = max(len(a), len(b)) - 2
    left = _matrix(a, rank, ("m", "k"), ("k",))
    right = _matrix(b, rank, ("k", "n"), ("k",))
    lead = tuple(f"lead {dim}" for dim in range(max(rank, 0)))
    result = (*lead, *(("m",) if len(a) > 1 else ()), *(("n",) if len(b) > 1 else ()))
    return _summed(call, (left, right), result)


def _matrix(shape: tuple[int, ...], rank: int, matrix: Labels, vector: Labels) -> Labels:
    if len(shape) == 1:
        return named_dims(shape, *vector)
    lead = tuple(f"lead {rank - (len(shape) - 2) + dim}" for dim in range(len(shape) - 2))
    return named_dims(shape, *lead, *matrix)


def mv(call: Call) -> tuple[Choice, ...]:
    """`mv(a, x)`: (m, k) by (k)."""
    a, x = call.tensor(0), call.tensor(1)
    return _summed(call, (named_dims(a.shape, "m", "k"), named_dims(x.shape, "k")), ("m",))


def dot(call: Call) -> tuple[Choice, ...]:
    """`dot(a, b)` of vectors."""
    labels = named_dims(call.tensor(0).shape, "k")
    return _summed(call, (labels, labels), ())


def outer(call: Call) -> tuple[Choice, ...]:
    """`outer(a, b)` of vectors."""
    a, b = call.tensor(0), call.tensor(1)
    return _summed(call, (named_dims(a.shape, "m"), named_dims(b.shape, "n")), ("m", "n"))


def einsum(call: Call) -> tuple[Choice, ...]:
    """`einsum("ab,bc->ac", tensors)`: letters of the result freely, the others give partial sums."""
    equation = call.arguments[0]
    if not isinstance(equation, str) or "." in equation:
        return ()
    given, arrow, result = equation.replace(" ", "").partition("->")
    operands = given.split(",")
    if not arrow:
        letters = sorted(letter for letter in set(given) - {","} if given.count(letter) == 1)
        result = "".join(letters)
    inputs = tuple(named_dims(value.shape, *letters) for value, letters in zip(tensors(call), operands, strict=True))
    # A letter twice in one operand is a diagonal, which no piece has.
    twice = {letter for letters in operands for letter in letters if letters.count(letter) > 1}
    inputs = tuple(tuple("" if label in twice else label for label in labels) for labels in inputs)
    return _summed(call, inputs, tuple("" if letter in twice else letter for letter in result))


def _summed(
    call: Call, inputs: tuple[Labels, ...], result: Labels, added: set[int] | None = None
) -> tuple[Choice, ...]:
    """Every label of the operands that is not in the result is summed over."""
    result = tuple("" if size == 1 else label for size, label in zip(call.outputs[0].shape, result, strict=True))
    contracted = dict.fromkeys(label for labels in inputs for label in labels if label and label not in result)
    summed = tuple(label for label in contracted)
    return pattern_choices(Pattern(inputs=inputs, outputs=(result,), summed=summed, added=frozenset(added or ())))
