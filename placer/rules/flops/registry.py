"""The table of rules: operator name -> kind and rule. `register` adds to it; importing this registers nothing."""

from __future__ import annotations

from placer.errors import UsageError
from placer.graph import OpKind
from placer.rules import opaque
from placer.rules.calls import Rule
from placer.rules.flops import attention, convolutions, products
from placer.rules.flops.einsum import einsum

# The name without namespace and overload -> its rule. FLOPs of everything in KINDS but not here are zero.
RULES: dict[str, Rule] = {
    "linear": products.linear,
    "mm": products.mm,
    "addmm": products.addmm,
    "bmm": products.bmm,
    "baddbmm": products.baddbmm,
    "matmul": products.matmul,
    "einsum": einsum,
    "_grouped_mm": products.grouped_product,
    "grouped_mm": products.grouped_product,
    "grouped_mm_fallback": products.grouped_product,
    "conv1d": convolutions.convolution,
    "conv2d": convolutions.convolution,
    "conv3d": convolutions.convolution,
    "conv_transpose1d": convolutions.transposed_convolution,
    "conv_transpose2d": convolutions.transposed_convolution,
    "conv_transpose3d": convolutions.transposed_convolution,
    "convolution": convolutions.any_convolution,
    "scaled_dot_product_attention": attention.attention,
    "_scaled_dot_product_flash_attention": attention.fused_attention,
    "_scaled_dot_product_efficient_attention": attention.fused_attention,
    "_scaled_dot_product_cudnn_attention": attention.fused_attention,
    "_scaled_dot_product_flash_attention_for_cpu": attention.fused_attention,
    opaque.TARGET: opaque.opaque,
}

_NAMES: dict[OpKind, str] = {
    "matmul": "linear mm addmm bmm baddbmm matmul einsum _grouped_mm grouped_mm grouped_mm_fallback",
    "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution",
    "attention": "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu",
    "view": "view reshape transpose permute t unsqueeze squeeze expand slice select split split_with_sizes chunk "
    "unbind "
    "narrow detach alias view_as unflatten flatten movedim swapaxes diagonal as_strided expand_as numpy_T mT getitem "
    "_unsafe_view unfold view_as_real view_as_complex real imag lift_fresh_copy sym_size unsafe_split unsafe_chunk",
    "pointwise": "to _to_copy type_as contiguous clone copy_ fill_ zero_ zeros ones full empty arange zeros_like "
    "ones_like "
    "full_like empty_like new_zeros new_ones new_full new_empty scalar_tensor eye tril triu linspace cat stack pad "
    "constant_pad_nd roll flip repeat repeat_interleave dropout_ where masked_fill masked_fill_ __and__ __or__ __xor__ "
    "__rshift__ __lshift__ slice_scatter select_scatter softplus celu glu prelu lerp one_hot clamp_ bernoulli_ item "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle meshgrid tile hstack "
    "vstack "
    "batch_norm_update_stats relu_ silu_ gelu_ hardtanh_ leaky_relu_ add_ mul_ sub_ div_ index_fill lift_fresh "
    "_local_scalar_dense _assert_async _assert_scalar sym_constrain_range_for_size sym_constrain_range square_ einsum_ "
    "broadcast_tensors atleast_1d atleast_2d atleast_3d rot90 concat concatenate fmod float_power square trapezoid "
    "floor_divide",
    "reduction": "softmax log_softmax _softmax _log_softmax sum mean amax amin max min var std var_mean norm "
    "linalg_vector_norm "
    "logsumexp layer_norm native_layer_norm rms_norm group_norm native_group_norm batch_norm native_batch_norm "
    "instance_norm cumsum cumprod diff argmax argmin sort topk any all prod cross_entropy_loss nll_loss nll_loss_nd "
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
    "cosine_embedding_loss avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d max_pool2d_with_indices adaptive_max_pool2d histc bincount "
    "count_nonzero cosine_similarity normalize argsort unique_consecutive poisson_nll_loss searchsorted "
    "upsample_bilinear2d upsample_bicubic2d cummax median aminmax std_mean local_response_norm dist nansum nanmean",
    "gather": "embedding index index_select gather take scatter scatter_ scatter_add scatter_add_ index_put index_put_ "
    "index_add index_add_ index_copy index_copy_ embedding_bag masked_select nonzero masked_scatter take_along_dim",
    "random": "dropout feature_dropout alpha_dropout native_dropout bernoulli rand randn randint rand_like randn_like "
    "randint_like randperm normal multinomial uniform uniform_ normal_ random_ exponential_",
}  # fmt: skip
KINDS: dict[str, OpKind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def register(target: str, rule: Rule | None, *, kind: OpKind = "opaque") -> None:
    """Give the operator `namespace::name` a rule; None says that it has no FLOPs. Raises UsageError if it has one."""
    if target in RULES or target in KINDS:
        raise UsageError(f"{target} already has a rule; call unregister({target!r}) first to replace it")
    KINDS[target] = kind
    if rule is not None:
        RULES[target] = rule


def unregister(target: str) -> None:
    """Forget what `register` was told about `target`."""
    KINDS.pop(target, None)
    RULES.pop(target, None)


def rule_for(target: str) -> Rule | None:
    """The FLOP rule of `namespace::name`, None where there is none: then `kind_of` tells whether its FLOPs are zero."""
    return RULES.get(target) or (RULES.get(_short(target)) if _is_known_namespace(target) else None)


def kind_of(target: str, tags: frozenset[str] = frozenset()) -> OpKind:
    """The kind of `namespace::name`; `opaque` where nobody knows it. `tags` are torch's own (`pointwise`, `view`)."""
    if target in KINDS:
        return KINDS[target]
    if not _is_known_namespace(target):
        return "opaque"
    if _short(target) in KINDS:
        return KINDS[_short(target)]
    known: tuple[tuple[str, OpKind], ...] = (
        ("view", "view"),
        ("nondeterministic_seeded", "random"),
        ("pointwise", "pointwise"),
        ("reduction", "reduction"),
    )
    return next((kind for tag, kind in known if tag in tags), "opaque")


def _short(target: str) -> str:
    return target.rpartition("::")[2]


def _is_known_namespace(target: str) -> bool:
    # A user's own `mylib::linear` is not torch's linear.
    return target.partition("::")[0] in ("aten", "transformers", "builtin")
