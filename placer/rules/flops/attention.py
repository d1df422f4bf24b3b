"""Rules of attention: scores (b h, q, d) x (b h, d, s), then (b h, q, s) x (b h, s, v). Masks are not exploited.

`scaled_dot_product_attention` counts four products backward, the gradients themselves. The fused kernels count five:
they compute the scores again (Dao et al. 2022, "FlashAttention", section 3.1), as torch.utils.flop_counter does.
"""

from __future__ import annotations

from placer.rules.calls import Call, MatrixProduct, Value, Work


def attention(call: Call) -> Work:
    """`scaled_dot_product_attention(q, k, v, ...)` as plain products."""
    q, k, v = call.tensor(0), call.tensor(1), call.tensor(2)
    scores, values = _forward(q, k, v)
    batch, m, n, depth = scores
    backward: tuple[MatrixProduct, ...] = ()
    if v.requires_grad:
        backward += (MatrixProduct(batch, n, values.n, m),)
    if q.requires_grad or k.requires_grad:
        backward += (MatrixProduct(batch, m, n, values.n),)
    if q.requires_grad:
        backward += (MatrixProduct(batch, m, depth, n),)
    if k.requires_grad:
        backward += (MatrixProduct(batch, n, depth, m),)
    return Work(forward=(scores, values), backward=backward)


def fused_attention(call: Call) -> Work:
    """A fused kernel: forward as above, backward with the scores computed once more."""
    plain = attention(call)
    if not plain.backward:
        return plain
    return Work(forward=plain.forward, backward=(plain.forward[0], *plain.backward))


def _forward(q: Value, k: Value, v: Value) -> tuple[MatrixProduct, MatrixProduct]:
    batch = q.elements // q.shape[-1] // q.shape[-2]
    m, n, depth = q.shape[-2], k.shape[-2], q.shape[-1]
    return MatrixProduct(batch, m, n, depth), MatrixProduct(batch, m, v.shape[-1], n)
