"""The table of split rules: operator name -> rule, and `register_split` for ops of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from placer.errors import UsageError
from placer.rules.calls import Call, Value
from placer.rules.layouts import Choice
from placer.rules.splits.families import (
    attention,
    convolutions,
    creation,
    experts,
    losses,
    normalisations,
    pointwise,
    pooling,
    products,
    reductions,
    views,
)
from placer.rules.splits.families import indexing as gathers
from placer.rules.splits.localise import legal
from placer.rules.splits.patterns import deferred, sizes_agree, tensors, whole

SplitRule = Callable[[Call], tuple[Choice, ...]]

_NAMES: dict[SplitRule, str] = {
    pointwise.pointwise: "abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor "
    "ceil celu clamp clamp_max clamp_min clip copysign cos cosh digamma elu eq erf erfc erfinv exp exp2 expm1 "
    "float_power floor floor_divide fmod frac ge gelu greater greater_equal gt hardshrink hardsigmoid hardswish "
    "hardtanh isfinite isinf isnan isneginf isposinf le leaky_relu lerp less less_equal lgamma log log10 log1p log2 "
    "log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish "
    "ne nan_to_num nextafter not_equal pow prelu_kernel reciprocal relu relu6 remainder round rsqrt selu sgn sigmoid "
    "sign silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold trunc xlogy __and__ __or__ __xor__ "
    "__rshift__ __lshift__ bitwise_left_shift bitwise_right_shift addcmul addcdiv rsub zeros_like ones_like full_like "
    "empty_like",
    pointwise.linear: "neg clone contiguous alias detach positive lift_fresh_copy real imag",
    pointwise.cast: "to _to_copy type_as",
    pointwise.addition: "add sub subtract",
    pointwise.product: "mul multiply",
    pointwise.quotient: "div divide true_divide",
    pointwise.where: "where",
    pointwise.masked_fill: "masked_fill",
    pointwise.dropout: "dropout",
    views.transpose: "transpose swapaxes swapdims",
    views.permute: "permute",
    views.movedim: "movedim moveaxis",
    views.turned: "t mT numpy_T",
    views.reshape: "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as",
    views.expand: "expand broadcast_to expand_as",
    views.repeat: "repeat",
    views.repeat_interleave: "repeat_interleave",
    views.halved: "glu",
    views.select: "select",
    views.unbind: "unbind",
    views.split: "split chunk split_with_sizes unsafe_split unsafe_chunk tensor_split",
    views.slice_: "slice narrow",
    views.pad: "pad constant_pad_nd",
    views.cat: "cat concat concatenate",
    views.stack: "stack",
    views.mirrored: "flip roll tril triu",
    views.scattered_slice: "slice_scatter select_scatter",
    views.diagonal: "diagonal",
    products.linear: "linear",
    products.mm: "mm",
    products.addmm: "addmm",
    products.bmm: "bmm",
    products.baddbmm: "baddbmm",
    products.matmul: "matmul",
    products.mv: "mv",
    products.dot: "dot",
    products.outer: "outer ger",
    products.einsum: "einsum",
    convolutions.convolution: "conv1d conv2d conv3d",
    convolutions.transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    convolutions.any_convolution: "convolution",
    pooling.max_pool: "max_pool1d max_pool2d max_pool3d",
    pooling.average_pool: "avg_pool1d avg_pool2d avg_pool3d",
    pooling.adaptive_average_pool: "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    pooling.per_plane: "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d",
    pooling.nearest: "upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    pooling.shuffled: "pixel_shuffle pixel_unshuffle",
    attention.attention: "scaled_dot_product_attention",
    normalisations.softmax: "softmax log_softmax _softmax _log_softmax",
    normalisations.layer_norm: "layer_norm native_layer_norm rms_norm",
    normalisations.group_norm: "group_norm",
    normalisations.batch_norm: "batch_norm",
    normalisations.instance_norm: "instance_norm",
    reductions.total: "sum",
    reductions.mean: "mean",
    reductions.extreme: "amax amin max min var std var_mean std_mean prod any all argmax argmin logsumexp "
    "count_nonzero median nansum nanmean aminmax",
    reductions.norm: "linalg_vector_norm norm",
    reductions.scan: "cumsum",
    reductions.ordered: "cumprod cummax cummin sort argsort",
    reductions.topk: "topk",
    reductions.difference: "diff",
    reductions.one_hot: "one_hot",
    gathers.embedding: "embedding",
    gathers.index_select: "index_select",
    gathers.index: "index",
    gathers.index_put: "index_put",
    gathers.gather: "gather",
    gathers.scatter: "scatter scatter_add",
    losses.cross_entropy: "cross_entropy_loss nll_loss nll_loss_nd",
    losses.elementwise: "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div",
    experts.grouped_product: "grouped_mm _grouped_mm grouped_mm_fallback",
    experts.histogram: "histc",
    creation.filled: "zeros ones full empty new_zeros new_ones new_full new_empty",
    creation.arange: "arange",
}  # fmt: skip
SPLITS: dict[str, SplitRule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}

# How ops treat rows in an order of the rank's own; others that keep dim 0 apart keep it so (`own_rows`).
OWN: dict[str, SplitRule] = {
    "grouped_mm": experts.own_product,
    "_grouped_mm": experts.own_product,
    "grouped_mm_fallback": experts.own_product,
    "sort": experts.own_sort,
    "histc": experts.own_histogram,
    "index": experts.own_index,
    "index_put": experts.own_index_put,
}
_KEEPS_OWN = {
    pointwise.pointwise,
    pointwise.linear,
    pointwise.cast,
    pointwise.addition,
    pointwise.product,
    pointwise.quotient,
    views.reshape,
    views.split,
    reductions.scan,
}

# max, min and the like with a second tensor are elementwise.
_TWO_SIDED = frozenset({"max", "min"})


def split_choices(call: Call, degree: int | None = None) -> tuple[Choice, ...]:
    """Every way to do `call` along one axis; with a degree only those whose sizes it can cut.

    The first is `whole`: every rank does all of it. An op without a rule has no other.
    """
    rule = split_rule(call)
    if rule is None:
        return (whole(call),)
    found = tuple(replace(choice, uneven=not choice.counts and sizes_agree(call, choice)) for choice in rule(call))
    choices = (whole(call), *((deferred(call),) if tensors(call) else ()), *found)
    return choices if degree is None else tuple(choice for choice in choices if legal(choice, call, degree))


def own_choices(call: Call) -> tuple[Choice, ...]:
    """Ways to do `call` on rows that are in an order of each rank's own (see `Cut.own`); few ops have any."""
    short, rule = _short(call), split_rule(call)
    if rule is None:
        return ()
    if short in OWN:
        found = OWN[short](call)
    elif rule in _KEEPS_OWN:
        found = experts.own_rows(call, rule(call))
    else:
        found = ()
    return tuple(replace(choice, uneven=sizes_agree(call, choice)) for choice in found)


def _short(call: Call) -> str:
    # An op that writes into its argument is cut like the one that does not.
    namespace, _, name = call.target.rpartition("::")
    if namespace not in ("aten", "transformers"):
        return ""
    return name if name.endswith("__") else name.rstrip("_")


def split_rule(call: Call) -> SplitRule | None:
    """The rule of a call, None where there is none."""
    own = SPLITS.get(call.target)
    if own is not None:
        return own
    short = _short(call)
    if short in _TWO_SIDED and len(call.arguments) > 1 and isinstance(call.arguments[1], Value):
        return pointwise.pointwise
    return SPLITS.get(short)


def register_split(target: str, rule: SplitRule) -> None:
    """Give the operator `namespace::name` a split rule, written out or with `named`. UsageError if it has one."""
    if "::" not in target:
        raise UsageError(f"{target} is no operator: write namespace::name")
    if target in SPLITS:
        raise UsageError(f"{target} already has a split rule; call unregister_split({target!r}) first to replace it")
    SPLITS[target] = rule


def unregister_split(target: str) -> None:
    """Forget what `register_split` was told about `target`."""
    if "::" in target:
        SPLITS.pop(target, None)
