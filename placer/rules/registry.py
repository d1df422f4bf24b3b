"""The tables of rules: operator name -> kind, FLOPs, splits. `register` and `register_split` add to them.

Names are without namespace and overload; what is registered is `namespace::name`. Importing this registers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from placer.errors import UsageError
from placer.graph import OpKind
from placer.io.usercode import said
from placer.rules import opaque
from placer.rules.calls import Call, Rule, Value
from placer.rules.cut_sizes import legal, sizes_agree
from placer.rules.families import (
    attention,
    convolutions,
    einsum,
    experts,
    indexing,
    losses,
    normalisations,
    pointwise,
    pooling,
    products,
    reductions,
    views,
)
from placer.rules.layouts import Choice
from placer.rules.patterns import deferred, whole

T = TypeVar("T")
SplitRule = Callable[[Call], tuple[Choice, ...]]


def _by_name(table: Mapping[T, str]) -> dict[str, T]:
    return {name: entry for entry, names in table.items() for name in names.split()}


KINDS: dict[str, OpKind] = _by_name({
    "matmul": "linear mm addmm bmm baddbmm matmul einsum _grouped_mm grouped_mm grouped_mm_fallback",
    "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution",
    "attention": "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu",
    "view": "view reshape transpose permute t unsqueeze squeeze expand slice select split split_with_sizes chunk "
    "unbind narrow detach alias view_as unflatten flatten movedim swapaxes diagonal as_strided expand_as numpy_T mT "
    "getitem _unsafe_view unfold view_as_real view_as_complex real imag lift_fresh_copy sym_size unsafe_split "
    "unsafe_chunk",
    "pointwise": "to _to_copy type_as contiguous clone copy_ fill_ zero_ zeros ones full empty arange zeros_like "
    "ones_like full_like empty_like new_zeros new_ones new_full new_empty scalar_tensor eye tril triu linspace cat "
    "stack pad constant_pad_nd roll flip repeat repeat_interleave dropout_ where masked_fill masked_fill_ __and__ "
    "__or__ __xor__ __rshift__ __lshift__ slice_scatter select_scatter softplus celu glu prelu lerp one_hot clamp_ "
    "item upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle meshgrid "
    "tile hstack vstack batch_norm_update_stats relu_ silu_ gelu_ hardtanh_ leaky_relu_ add_ mul_ sub_ div_ "
    "index_fill lift_fresh _local_scalar_dense _assert_async _assert_scalar sym_constrain_range_for_size "
    "sym_constrain_range square_ einsum_ broadcast_tensors atleast_1d atleast_2d atleast_3d rot90 concat concatenate "
    "fmod float_power square trapezoid floor_divide alias_copy",
    "reduction": "softmax log_softmax _softmax _log_softmax sum mean amax amin max min var std var_mean norm "
    "linalg_vector_norm logsumexp layer_norm native_layer_norm rms_norm group_norm native_group_norm batch_norm "
    "native_batch_norm instance_norm cumsum cumprod diff argmax argmin sort topk any all prod cross_entropy_loss "
    "nll_loss nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div cosine_embedding_loss avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d "
    "max_pool2d_with_indices adaptive_max_pool2d histc bincount count_nonzero cosine_similarity normalize argsort "
    "unique_consecutive poisson_nll_loss searchsorted upsample_bilinear2d upsample_bicubic2d cummax median aminmax "
    "std_mean local_response_norm dist nansum nanmean linalg_norm linalg_matrix_norm",
    "gather": "embedding index index_select gather take scatter scatter_ scatter_add scatter_add_ scatter_reduce "
    "scatter_reduce_ index_put index_put_ index_add index_add_ index_copy index_copy_ embedding_bag masked_select "
    "nonzero masked_scatter take_along_dim",
    "random": "dropout feature_dropout alpha_dropout native_dropout bernoulli rand randn randint rand_like randn_like "
    "randint_like randperm normal multinomial uniform uniform_ normal_ random_ exponential exponential_ bernoulli_ "
    "normal_functional",
})  # fmt: skip

# FLOPs of everything in KINDS but not here are zero.
RULES: dict[str, Rule] = _by_name({
    products.linear_work: "linear",
    products.product_work(0, 1): "mm bmm matmul",
    products.product_work(1, 2): "addmm baddbmm",
    einsum.einsum_work: "einsum",
    experts.grouped_product_work: "_grouped_mm grouped_mm grouped_mm_fallback",
    convolutions.convolution_work: "conv1d conv2d conv3d",
    convolutions.transposed_convolution_work: "conv_transpose1d conv_transpose2d conv_transpose3d",
    convolutions.any_convolution_work: "convolution",
    attention.attention_work: "scaled_dot_product_attention",
    attention.fused_attention_work: "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu",
    opaque.opaque: opaque.TARGET,
})  # fmt: skip

SPLITS: dict[str, SplitRule] = _by_name({
    pointwise.pointwise: "abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor "
    "ceil celu clamp clamp_max clamp_min clip copysign cos cosh digamma elu eq erf erfc erfinv exp exp2 expm1 "
    "float_power floor floor_divide fmod frac ge gelu greater greater_equal gt hardshrink hardsigmoid hardswish "
    "hardtanh isfinite isinf isnan isneginf isposinf le leaky_relu lerp less less_equal lgamma log log10 log1p log2 "
    "log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish ne "
    "nan_to_num nextafter not_equal pow prelu_kernel reciprocal relu relu6 remainder round rsqrt selu sgn sigmoid "
    "sign silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold trunc xlogy __and__ __or__ __xor__ "
    "__rshift__ __lshift__ bitwise_left_shift bitwise_right_shift complex polar angle conj _conj conj_physical "
    "resolve_conj resolve_neg hypot heaviside ldexp isclose addcmul addcdiv rsub zeros_like ones_like full_like "
    "empty_like absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh deg2rad rad2deg fix fmax fmin frexp gcd "
    "lcm i0 igamma igammac mvlgamma polygamma signbit special_bessel_j0 special_bessel_j1 special_entr special_erfcx "
    "special_digamma special_erf special_erfc special_erfinv special_exp2 special_expit special_expm1 special_gammainc "
    "special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr "
    "special_logit special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_sinc "
    "special_xlog1py special_xlogy special_zeta",
    pointwise.linear: "neg negative clone contiguous alias detach positive lift_fresh_copy real imag",
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
    views.broadcast_tensors: "broadcast_tensors",
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
    einsum.einsum: "einsum",
    convolutions.convolution: "conv1d conv2d conv3d",
    convolutions.transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    convolutions.any_convolution: "convolution",
    pooling.max_pool: "max_pool1d max_pool2d max_pool3d",
    pooling.average_pool: "avg_pool1d avg_pool2d avg_pool3d",
    pooling.adaptive_average_pool: "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    pooling.per_plane: "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d "
    "upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
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
    reductions.norm: "linalg_vector_norm linalg_norm norm",
    reductions.matrix_norm: "linalg_matrix_norm",
    reductions.scan: "cumsum",
    reductions.ordered: "cumprod cummax cummin sort argsort",
    reductions.topk: "topk",
    reductions.difference: "diff",
    reductions.one_hot: "one_hot",
    indexing.embedding: "embedding",
    indexing.embedding_bag: "embedding_bag",
    indexing.index_select: "index_select",
    indexing.index: "index",
    indexing.index_put: "index_put",
    indexing.gather: "gather",
    indexing.scatter: "scatter scatter_add scatter_reduce",
    losses.cross_entropy: "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d",
    losses.elementwise: "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div soft_margin_loss",
    experts.grouped_product: "grouped_mm _grouped_mm grouped_mm_fallback",
    experts.histogram: "histc",
    pointwise.filled: "zeros ones full empty new_zeros new_ones new_full new_empty",
    pointwise.arange: "arange",
})  # fmt: skip

# How ops treat rows in an order of the rank's own; others that keep dim 0 apart keep it so (`own_rows`).
OWN: dict[str, SplitRule] = _by_name({
    experts.own_product: "grouped_mm _grouped_mm grouped_mm_fallback",
    experts.own_sort: "sort",
    experts.own_histogram: "histc",
    experts.own_index: "index",
    experts.own_index_put: "index_put",
})  # fmt: skip
_KEEPS_OWN = {
    pointwise.pointwise,
    pointwise.linear,
    pointwise.cast,
    pointwise.addition,
    pointwise.product,
    pointwise.quotient,
    views.reshape,
    views.split,
    views.slice_,
    reductions.scan,
}

# What was registered or forgotten, in order.
_CHANGES: list[str] = []

# max, min and the like with a second tensor are elementwise.
_TWO_SIDED = frozenset({"max", "min"})


def register(target: str, rule: Rule | None, *, kind: OpKind = "opaque") -> None:
    """Give the operator `namespace::name` a rule; None says that it has no FLOPs. Raises UsageError if it has one."""
    if target in RULES or target in KINDS:
        raise UsageError(f"{target} already has a rule; call unregister({target!r}) first to replace it")
    _CHANGES.append(target)
    KINDS[target] = kind
    if rule is not None:
        RULES[target] = rule


def registrations() -> int:
    """How often rules were registered or forgotten, for what is kept of their results."""
    return len(_CHANGES)


def unregister(target: str) -> None:
    """Forget what `register` was told about `target`."""
    _CHANGES.append(target)
    KINDS.pop(target, None)
    RULES.pop(target, None)


def rule_for(target: str) -> Rule | None:
    """The FLOP rule of `namespace::name`, None where there is none: then `kind_of` tells whether its FLOPs are zero."""
    return RULES.get(target) or (RULES.get(target.rpartition("::")[2]) if _is_known_namespace(target) else None)


def kind_of(target: str, tags: frozenset[str] = frozenset()) -> OpKind:
    """The kind of `namespace::name`; `opaque` where nobody knows it. `tags` are torch's own (`pointwise`, `view`)."""
    if target in KINDS:
        return KINDS[target]
    if not _is_known_namespace(target):
        return "opaque"
    short = target.rpartition("::")[2]
    if short in KINDS:
        return KINDS[short]
    known: tuple[tuple[str, OpKind], ...] = (
        ("view", "view"),
        ("nondeterministic_seeded", "random"),
        ("pointwise", "pointwise"),
        ("reduction", "reduction"),
    )
    return next((kind for tag, kind in known if tag in tags), "opaque")


def _is_known_namespace(target: str) -> bool:
    # A user's own `mylib::linear` is not torch's linear.
    return target.partition("::")[0] in ("aten", "transformers", "builtin")


def split_choices(call: Call, degree: int | None = None) -> tuple[Choice, ...]:
    """Every way to do `call` along one axis; with a degree only those whose sizes it can cut.

    The first is `whole`: every rank does all of it. An op without a rule has no other. Raises UsageError where the rule
    cannot read the call.
    """
    rule = split_rule(call)
    if rule is None:
        return (whole(call),)
    try:
        ways = rule(call)
    except (IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise UsageError(
            f"the split rule of {call.target} cannot read a call with {len(call.arguments)} arguments ({said(error)}); "
            "where the graph comes from a file plan again, where the rule is your own correct it"
        ) from error
    found = tuple(replace(choice, uneven=not choice.counts and sizes_agree(call, choice)) for choice in ways)
    choices = (whole(call), *((deferred(call),) if call.tensors else ()), *found)
    return choices if degree is None else tuple(choice for choice in choices if legal(choice, call, degree))


def own_choices(call: Call) -> tuple[Choice, ...]:
    """Ways to do `call` on rows that are in an order of each rank's own (see `Cut.own`); few ops have any."""
    short, rule = call.pure_name, split_rule(call)
    if rule is None:
        return ()
    found = OWN[short](call) if short in OWN else experts.own_rows(call, rule(call)) if rule in _KEEPS_OWN else ()
    return tuple(replace(choice, uneven=sizes_agree(call, choice)) for choice in found)


def split_rule(call: Call) -> SplitRule | None:
    """The rule of a call, None where there is none."""
    own = SPLITS.get(call.target)
    if own is not None:
        return own
    short = call.pure_name
    if short in _TWO_SIDED and len(call.arguments) > 1 and isinstance(call.arguments[1], Value):
        return pointwise.pointwise
    return SPLITS.get(short)


def register_split(target: str, rule: SplitRule) -> None:
    """Give the operator `namespace::name` a split rule, written out or with `named`. UsageError if it has one."""
    if "::" not in target:
        raise UsageError(f"{target} is no operator: write namespace::name")
    if target in SPLITS:
        raise UsageError(f"{target} already has a split rule; call unregister_split({target!r}) first to replace it")
    _CHANGES.append(target)
    SPLITS[target] = rule


def unregister_split(target: str) -> None:
    """Forget what `register_split` was told about `target`."""
    if "::" in target:
        _CHANGES.append(target)
        SPLITS.pop(target, None)
