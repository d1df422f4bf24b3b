"""Rules of the matrix product family. Bias additions are not counted (as in torch.utils.flop_counter)."""

from __future__ import annotations

from math import prod

from placer.rules.calls import Call, Value, Work, gradients


def linear(call: Call) -> Work:
    """`linear(x, w, b)`: x (..., k) by w (n, k) transposed."""
    x, w = call.tensor(0), call.tensor(1)
    n, k = w.shape if len(w.shape) == 2 else (1, w.shape[0])
    return gradients(x, w, batch=1, m=x.elements // k, n=n, k=k)


def mm(call: Call) -> Work:
    """`mm(a, b)`: m x k by k x n."""
    return _two_dimensional(call.tensor(0), call.tensor(1))


def addmm(call: Call) -> Work:
    """`addmm(bias, a, b)`."""
    return _two_dimensional(call.tensor(1), call.tensor(2))


def bmm(call: Call) -> Work:
    """`bmm(a, b)`: b x m x k by b x k x n."""
    return _broadcast(call.tensor(0), call.tensor(1))


def baddbmm(call: Call) -> Work:
    """`baddbmm(bias, a, b)`."""
    return _broadcast(call.tensor(1), call.tensor(2))


def matmul(call: Call) -> Work:
    """`matmul(a, b)` with broadcast leading dims; a vector on either side is not counted by the reference either."""
    a, b = call.tensor(0), call.tensor(1)
    if len(a.shape) < 2 or len(b.shape) < 2:
        return _with_vector(a, b)
    return _broadcast(a, b)


def grouped_product(call: Call) -> Work:
    """`grouped_mm(x, w, offsets)`: rows of x (t, k), sorted by expert, each by its expert's matrix of w (e, k, n).

    2 * t * k * n FLOPs whatever the routing; as e equal products where t divides (balanced routing), else as one.
    """
    x, w = call.tensor(0), call.tensor(1)
    experts = w.shape[0]
    tokens, k = x.shape[-2], x.shape[-1]
    n = w.elements // experts // k
    groups = experts if tokens % experts == 0 else 1
    return gradients(x, w, batch=groups, m=tokens // groups, n=n, k=k)


def _two_dimensional(a: Value, b: Value) -> Work:
    return gradients(a, b, batch=1, m=a.shape[0], n=b.shape[1], k=a.shape[1])


def _broadcast(a: Value, b: Value) -> Work:
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(b.shape) == 2:
        return gradients(a, b, batch=1, m=a.elements // k, n=n, k=k)
    longest = max(len(a.shape), len(b.shape)) - 2
    lead_a = (1,) * (longest - len(a.shape) + 2) + a.shape[:-2]
    lead_b = (1,) * (longest - len(b.shape) + 2) + b.shape[:-2]
    return gradients(a, b, batch=prod(max(x, y) for x, y in zip(lead_a, lead_b, strict=True)), m=m, n=n, k=k)


def _with_vector(a: Value, b: Value) -> Work:
    if len(b.shape) == 1:
        return gradients(a, b, batch=1, m=a.elements // b.shape[0], n=1, k=b.shape[0])
    return gradients(a, b, batch=b.elements // b.shape[-1] // b.shape[-2], m=1, n=b.shape[-1], k=a.shape[0])
