"""Scaled dot-product attention: scores (b h, q, d) x (b h, d, s), then (b h, q, s) x (b h, s, v).

Its FLOPs: masks are not exploited. `scaled_dot_product_attention` counts four products backward, the gradients
themselves. The fused kernels count five: they compute the scores again (Dao et al. 2022, "FlashAttention", section
3.1), as torch.utils.flop_counter does.

Its splits: batch, heads (grouped ones too) and the query sequence, its keys and values whole.
"""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import Call, MatrixProduct, Value, Work
from placer.rules.layouts import Choice
from placer.rules.patterns import Labels, Pattern, along, divisible


def attention_work(call: Call) -> Work:
    """`scaled_dot_product_attention(q, k, v, ...)` as plain products."""
    q, k, v = call.tensor(0), call.tensor(1), call.tensor(2)
    batch = q.elements // q.shape[-1] // q.shape[-2]
    m, n, depth, width = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    backward: tuple[MatrixProduct, ...] = ()
    if v.requires_grad:
        backward += (MatrixProduct(batch, n, width, m),)
    if q.requires_grad or k.requires_grad:
        backward += (MatrixProduct(batch, m, n, width),)
    if q.requires_grad:
        backward += (MatrixProduct(batch, m, depth, n),)
    if k.requires_grad:
        backward += (MatrixProduct(batch, n, depth, m),)
    return Work(forward=(MatrixProduct(batch, m, n, depth), MatrixProduct(batch, m, width, n)), backward=backward)


def fused_attention_work(call: Call) -> Work:
    """A fused kernel: forward as above, backward with the scores computed once more."""
    plain = attention_work(call)
    return replace(plain, backward=(plain.forward[0], *plain.backward)) if plain.backward else plain


def attention(call: Call) -> tuple[Choice, ...]:
    """`scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale, enable_gqa)`.

    q is (..., heads, query, d), k and v (..., key-value heads, key, d), the mask is broadcast to (..., query, key).
    With grouped heads the degree must divide the key-value heads, unless those are whole and each rank takes its own.
    """
    q, k, v = (call.tensor(position).shape for position in range(3))
    rank = len(q)
    others = call.tensors[3:]
    mask = call.argument(3, "attn_mask")
    inputs = (_named(q, rank, "query", ""), _named(k, rank, "", ""), _named(v, rank, "", ""))
    masks = (_named(mask.shape, rank, "query", ""),) if isinstance(mask, Value) else ()
    if len(others) != len(masks):
        return ()
    pattern = Pattern(inputs=(*inputs, *masks), outputs=(_named(call.outputs[0].shape, rank, "query", ""),))
    choices = tuple(_local(call, along(pattern, label)) for label in pattern.labels)
    return choices if _drops(call) else (*choices, *_own_heads(q, k, v, pattern))


def _named(shape: tuple[int, ...], rank: int, *last: str) -> Labels:
    names = (*(f"lead {dim}" for dim in range(rank - 3)), *(("heads",) if rank > 2 else ()), *last)
    return divisible(names[rank - len(shape) :], shape)


def _local(call: Call, choice: Choice) -> Choice:
    causal = call.argument(5, "is_causal", False) is True
    if _drops(call):
        return replace(choice, local="attention_dropout")
    return replace(choice, local="attention_rows") if choice.name == "query" and causal else choice


def _drops(call: Call) -> bool:
    return bool(call.argument(4, "dropout_p", 0.0))


def _own_heads(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], pattern: Pattern) -> tuple[Choice, ...]:
    """Key and value heads whole, for degrees that do not divide them: a rank takes those its query heads read."""
    if len(q) < 3 or k[-3] in (1, q[-3]) or k[-3] != v[-3]:
        return ()
    whole = tuple("" if label == "heads" else label for label in pattern.inputs[1])
    labels = replace(pattern, inputs=(pattern.inputs[0], whole, whole, *pattern.inputs[3:]))
    return (replace(along(labels, "heads"), name="heads, keys whole", local="attention_heads"),)
