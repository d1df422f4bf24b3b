"""Scaled dot-product attention: batch, heads (grouped ones too) and the query sequence, its keys and values whole."""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import Call, Value
from placer.rules.layouts import Choice
from placer.rules.splits.patterns import Labels, Pattern, along, tensors


def attention(call: Call) -> tuple[Choice, ...]:
    """`scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale, enable_gqa)`.

    q is (..., heads, query, d), k and v (..., key-value heads, key, d), the mask is broadcast to (..., query, key).
    With grouped heads the degree must divide the key-value heads, unless those are whole and each rank takes its own.
    """
    q, k, v = (call.tensor(position).shape for position in range(3))
    rank = len(q)
    others = tensors(call)[3:]
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
    return tuple("" if size == 1 else name for size, name in zip(shape, names[rank - len(shape) :], strict=True))


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
    made = along(labels, "heads")
    return (replace(made, name="heads, keys whole", local="attention_heads"),)
