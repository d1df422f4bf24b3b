"""Functions that give of each row what they give of the row alone: of a selection, a selection of the same rows.

The rows that the mask does not take are computed too. They must be finite, in value and derivative, or the zero that
comes back to them is none: where a function is so in some places alone they are put into one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from placer.tracer.selections.selected import Selected, first_of, is_selected, refused, require_alike, resting

_ELEMENTWISE = """add radd sub rsub mul rmul div rdiv truediv rtruediv true_divide floor_divide floordiv pow rpow neg
abs absolute sign square exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tanh sigmoid logit erf asin acos
atan atan2 atanh relu relu6 gelu silu elu selu celu leaky_relu softplus logsigmoid log_sigmoid hardtanh hardswish
hardsigmoid mish softsign tanhshrink clamp clip clamp_min clamp_max minimum maximum where masked_fill lerp xlogy
logaddexp eq ne lt le gt ge not_equal greater less logical_and logical_or logical_xor logical_not bitwise_and
bitwise_or and or xor rand ror rxor invert isnan isinf isfinite nan_to_num floor ceil round trunc fmod remainder mod
rmod float double half bfloat16 long int bool to clone detach contiguous zeros_like ones_like full_like sgn exp2
positive hypot threshold one_hot addcmul addcdiv lgamma digamma"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
# With weights beside what has rows, by how many of their first arguments have rows, and of how many dims these are.
WEIGHTED = {
    "linear": (1, 2), "embedding": (1, 1), "layer_norm": (1, 2), "rms_norm": (1, 2), "group_norm": (1, 2),
    "prelu": (1, 2), "bilinear": (2, 2), "conv1d": (1, 3), "conv2d": (1, 4), "conv3d": (1, 5), "max_pool1d": (1, 3),
    "max_pool2d": (1, 4), "avg_pool1d": (1, 3), "avg_pool2d": (1, 4), "adaptive_avg_pool1d": (1, 3),
    "adaptive_avg_pool2d": (1, 4), "scaled_dot_product_attention": (3, 3), "bmm": (2, 3), "gather": (1, 2),
}  # fmt: skip
# By the place of the argument: what it is put to in the rows that are not taken.
FINITE: dict[str, dict[int, float]] = {
    **{name: {0: 1.0} for name in ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "rdiv", "rtruediv", "rmod")},
    **{name: {0: 1.5} for name in ("lgamma", "digamma")},
    **{name: {0: 0.5} for name in ("asin", "acos", "atanh", "logit", "log1p")},
    **{name: {0: 0.0} for name in ("exp", "exp2", "expm1")},
    **{name: {0: 1.0, 1: 1.0} for name in ("pow", "rpow", "atan2", "hypot", "xlogy")},
    **{name: {1: 1.0} for name in ("div", "truediv", "true_divide", "floor_divide", "floordiv")},
    **{name: {1: 1.0} for name in ("fmod", "remainder", "mod")},
    "addcdiv": {2: 1.0},
}  # fmt: skip
# What may fill in infinities, of which a row that is not taken may have nothing else.
FILLING = frozenset({"masked_fill", "where", "full_like"})
# The keywords of functions that go over dims.
_KEYWORDS = """dim keepdim dtype correction unbiased p ord k largest sorted descending stable index input eps start
length split_size split_size_or_sections chunks x1 x2 _stacklevel"""
KEYWORDS = frozenset(_KEYWORDS.split())
# Over which dim they go: the place of `dim`, and what it is where none is said (None: all, the rows too).
OVER: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "logsumexp", "cumsum", "argmax", "argmin"), (1, None)),
    **dict.fromkeys(("sum", "mean", "prod", "std", "var", "amax", "amin", "max", "min", "all", "any"), (1, None)),
    **dict.fromkeys(("sort", "argsort", "glu"), (1, -1)),
    **dict.fromkeys(("unbind", "select", "narrow"), (1, 0)),
    **dict.fromkeys(("chunk", "split"), (2, 0)),
    "count_nonzero": (1, None), "topk": (2, -1), "norm": (2, None), "vector_norm": (2, None), "normalize": (2, 1),
    "cosine_similarity": (2, 1),
}  # fmt: skip


def rowwise(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, beside: bool = False
) -> Any:
    """What `func` gives of the rows of selections that are taken alike; beside: other tensors are weights. Raises
    SelectionError where they are not taken alike, or where something else has rows."""
    one = first_of((args, kwargs))
    require_alike(one, (args, kwargs), beside)
    finite = FINITE.get(name, {})
    if finite and any(map(is_selected, kwargs.values())):
        refused(f"{name} of keywords")

    def bare(argument: Any) -> Any:
        return argument.values if is_selected(argument) else argument

    given = [
        arg.rows.kept(arg.values, finite[at]) if is_selected(arg) and at in finite else _pytree.tree_map(bare, arg)
        for at, arg in enumerate(args)
    ]
    result = func(*given, **_pytree.tree_map(bare, dict(kwargs)))
    return _pytree.tree_map_only(Tensor, lambda made: Selected(_at_rest(made, one, name), one.rows), result)


def _at_rest(made: Tensor, one: Selected, name: str) -> Tensor:
    """Of what may fill in infinities the rows that are not taken are finite again."""
    return one.rows.kept(made, resting(made)) if name in FILLING and made.is_floating_point() else made


def weighted(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a function with weights gives of each row. Raises SelectionError where it is given something else."""
    having, least = WEIGHTED[name]
    rows = [*args[:having], *(() if len(args) >= having else list(kwargs.values())[: having - len(args)])]
    others = [*args[having:], *kwargs.values()] if len(args) >= having else []
    if not all(map(is_selected, rows)) or rows[0].ndim < least:
        refused(f"{name} of a selection and of what is none")
    if name == "gather":
        _require_gathered(args, kwargs)
        args = tuple(in_table(arg) if at else arg for at, arg in enumerate(args))
        kwargs = {key: in_table(given) if key == "index" else given for key, given in kwargs.items()}
    elif name == "embedding":
        _require_plain_table(args, kwargs)
        args = (in_table(args[0]), *args[1:])
    elif any(map(is_selected, _pytree.tree_leaves(others))):
        refused(f"{name} with weights that are selected")
    if name == "scaled_dot_product_attention" and kwargs.get("dropout_p", args[4] if len(args) > 4 else 0):
        refused("dropout in attention")
    return rowwise(func, name, args, kwargs, beside=True)


def in_table(one: Any) -> Any:
    """Numbers of entries, of which those of rows that are not taken are the first's."""
    return Selected(one.rows.kept(one.values, 0), one.rows) if is_selected(one) else one


def _require_plain_table(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Neither renormalised nor scaled by how often its entries are read, which rows that are not taken would change."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if any(given.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse")) or not args:
        refused("an embedding that counts or renormalises what is read of it")


def _require_gathered(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not is_selected(kwargs.get("index", args[2] if len(args) > 2 else None)) or dim % args[0].ndim == 0:
        refused("gather over the rows of a selection")


def matmul(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Rows times a matrix, or each row's matrix times another. Raises SelectionError for others."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("mat2"))
    by_weights = is_selected(left) and not is_selected(right) and left.ndim >= 2 and right.ndim <= 2
    if not by_weights and not (is_selected(left) and is_selected(right) and left.ndim == right.ndim >= 3):
        refused("a product over the rows of a selection")
    return rowwise(func, name, args, kwargs, beside=True)


def dims_of(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The dims that a function of `OVER` goes over, counted from the first; None for all."""
    place, dim = OVER[name]
    found = kwargs.get("dim", args[place] if len(args) > place else dim)
    if not set(kwargs) <= KEYWORDS or found == () or found == []:
        refused(f"{name} with {', '.join(kwargs) or 'no dims'}")
    if found is None or isinstance(found, bool):
        return None
    dims = found if isinstance(found, list | tuple) else (found,)
    return tuple(int(one) % first_of((args, kwargs)).ndim for one in dims)
