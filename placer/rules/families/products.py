"""Matrix products: their FLOPs (bias additions not counted, as in torch.utils.flop_counter) and their splits.

Rows and columns are cut freely, the contracted dim gives partial sums, a bias enters them in shares.
"""

from __future__ import annotations

from math import prod

from placer.rules.calls import Call, Rule, Value, Work, gradients
from placer.rules.layouts import Choice
from placer.rules.patterns import Labels, named, named_dims, summed_choices


def linear_work(call: Call) -> Work:
    """`linear(x, w, b)`: x (..., k) by w (n, k) transposed."""
    x, w = call.tensor(0), call.tensor(1)
    n, k = w.shape if len(w.shape) == 2 else (1, w.shape[0])
    return gradients(x, w, batch=1, m=prod(x.shape[:-1]), n=n, k=k)


def product_work(left: int, right: int) -> Rule:
    """The FLOPs of the product of the arguments at these places, their leading dims broadcast."""

    def rule(call: Call) -> Work:
        return _product_work(call.tensor(left), call.tensor(right))

    return rule


def _product_work(a: Value, b: Value) -> Work:
    if len(b.shape) == 1:
        return gradients(a, b, batch=1, m=prod(a.shape[:-1]), n=1, k=b.shape[0])
    k, n = b.shape[-2:]
    if len(a.shape) == 1:
        return gradients(a, b, batch=prod(b.shape[:-2]), m=1, n=n, k=k)
    if len(b.shape) == 2:
        return gradients(a, b, batch=1, m=prod(a.shape[:-1]), n=n, k=k)
    longest = max(len(a.shape), len(b.shape))
    lead_a, lead_b = ((1,) * (longest - len(side)) + side[:-2] for side in (a.shape, b.shape))
    batch = prod(max(x, y) for x, y in zip(lead_a, lead_b, strict=True))
    return gradients(a, b, batch=batch, m=a.shape[-2], n=n, k=k)


#: (m, k) by (k, n), with a batch, and with a bias that is broadcast to the result.
mm = named("m k, k n -> m n")
bmm = named("batch m k, batch k n -> batch m n")
addmm = named("+m n, m k, k n -> m n")
baddbmm = named("+batch m n, batch m k, batch k n -> batch m n")
#: Products with vectors and of vectors.
mv = named("m k, k -> m")
dot = named("k, k ->")
outer = named("m, n -> m n")


def linear(call: Call) -> tuple[Choice, ...]:
    """`linear(x, w, bias)`: x (..., k), w (n, k), bias (n); w and bias may lack n."""
    return (_linear if len(call.tensor(1).shape) == 2 else _linear_of_vector)(call)


_linear = named("... k, n k, +n -> ... n")
_linear_of_vector = named("... k, k, + -> ...")


def matmul(call: Call) -> tuple[Choice, ...]:
    """`matmul(a, b)`: vectors and broadcast leading dims as in numpy."""
    a, b = call.tensor(0).shape, call.tensor(1).shape
    rank = max(len(a), len(b)) - 2
    left, right = _matrix(a, rank, ("m", "k")), _matrix(b, rank, ("k", "n"))
    lead = tuple(f"lead {dim}" for dim in range(max(rank, 0)))
    result = (*lead, *(("m",) if len(a) > 1 else ()), *(("n",) if len(b) > 1 else ()))
    return summed_choices(call, (left, right), result)


def _matrix(shape: tuple[int, ...], rank: int, matrix: Labels) -> Labels:
    if len(shape) == 1:
        return named_dims(shape, "k")
    lead = tuple(f"lead {rank - (len(shape) - 2) + dim}" for dim in range(len(shape) - 2))
    return named_dims(shape, *lead, *matrix)
