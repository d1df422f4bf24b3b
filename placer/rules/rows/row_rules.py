"""Ops that treat each row by itself and have no rule for splits of another kind: where the rows lie, before and after.

A rule says of every result how it stands, or None where rows mix. Dims are those of the op's own signature:

    grid_sampler(x, grid)                  rows in dim 0 of both -> dim 0
    fft_rfft(x, n, dim)                    rows anywhere but in `dim`
    linalg_solve(a, b)                     rows in any dim before the last two
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from placer.rules.calls import Argument, Call, Value
from placer.rules.layouts import PARTIAL, WHOLE, Cut
from placer.rules.patterns import integer, integers
from placer.rules.rows.piece_values import Mixed, RowNumbers, Standing, row_dims

Lays: TypeAlias = Sequence[Standing]
RowRule: TypeAlias = Callable[[Call, Lays], "list[Standing] | None"]


def row_rule(call: Call) -> RowRule | None:
    """The rule of a call; None where it has none here."""
    namespace, _, name = call.target.rpartition("::")
    return _BY_NAME.get(name.rstrip("_")) if namespace == "aten" else None


def _first(call: Call, lays: Lays) -> list[Standing] | None:
    """Rows in dim 0 of all that has any, and of every result."""
    return _as_results(call) if all(lay in (WHOLE, Cut(0)) for lay in lays) and _aligned(call, lays) else None


def _aligned(call: Call, lays: Lays) -> bool:
    """Whether rows meet their own where tensors of fewer dims are broadcast: `(rows, 1)` beside `(rows,)` does not."""
    places = {len(one.shape) - lay.dim for one, lay in zip(call.tensors, lays, strict=False) if isinstance(lay, Cut)}
    return len(places) < 2


def _same_dim(barred: Callable[[Call], Sequence[Argument]]) -> RowRule:
    """Rows in any dim but those that the arguments `barred` name, in the same dim of the results."""

    def rule(call: Call, lays: Lays) -> list[Standing] | None:
        rank = max(len(tensor.shape) for tensor in call.tensors)
        named = {dim % rank for one in barred(call) for dim in integers(one)}
        cuts = {lay for lay in lays if lay is not WHOLE}
        only = next(iter(cuts)) if len(cuts) == 1 else None
        plain = isinstance(only, Cut) and not only.own and only.parts == 1
        fits = isinstance(only, Cut) and plain and only.dim not in named and _aligned(call, lays)
        return _as_results(call) if fits else None

    return rule


def _along(position: int, *default: int) -> RowRule:
    """Rows anywhere but in the dims at `position`; where none are given, the default, or else all of them."""

    def barred(call: Call) -> list[Argument]:
        given = call.argument(position, "dim")
        return [(default or tuple(range(len(call.tensor(0).shape)))) if given is None else given]

    return _same_dim(barred)


def _transformed(call: Call) -> list[Argument]:
    """`fftn(x, sizes, dims)`: the dims, without them the last, as many as there are sizes, or else all."""
    sizes, dims = call.argument(1, "s"), call.argument(2, "dim")
    if dims is not None:
        return [dims]
    rank = len(call.tensor(0).shape)
    return [tuple(range(-(rank if sizes is None else len(integers(sizes))), 0))]


def _turned(call: Call) -> list[Argument]:
    """`rot90(x, k, dims)`: the two dims of the plane that is turned."""
    return [call.argument(2, "dims", (0, 1))]


def _last(call: Call) -> list[Argument]:
    """`linalg_vander(x)`: the powers of each entry of the last dim."""
    return [-1]


def _signals(call: Call, lays: Lays) -> list[Standing] | None:
    """`stft(x, ..., window)`: of each row's signal, by a window that they share; one dim alone is time."""
    apart = len(call.tensor(0).shape) == 2 and lays[0] == Cut(0) and all(lay is WHOLE for lay in lays[1:])
    return _as_results(call) if apart else None


def _inner(call: Call, lays: Lays) -> list[Standing] | None:
    """`inner(a, b)`: rows of one of both, not in the last dim, over which is summed."""
    at = 1 if lays[0] is WHOLE else 0
    rows, other = lays[at], lays[1 - at]
    apart = isinstance(rows, Cut) and rows == Cut(rows.dim) and rows.dim < len(call.tensor(at).shape) - 1
    return _as_results(call) if apart and other is WHOLE else None


def _chained(call: Call, lays: Lays) -> list[Standing] | None:
    """`linalg_multi_dot(matrices)`: rows of the first, where it is no vector."""
    apart = len(call.tensors[0].shape) == 2 and lays[0] == Cut(0) and all(lay is WHOLE for lay in lays[1:])
    return [Cut(0)] if apart else None


def _among(call: Call, lays: Lays) -> list[Standing] | None:
    """`isin(x, others)`: whether numbers of x are among those of something whole."""
    apart = isinstance(call.arguments[0], Value) and lays[0] is not WHOLE and all(lay is WHOLE for lay in lays[1:])
    return [lays[0]] if apart and isinstance(lays[0], Cut) else None


def _grids(call: Call, lays: Lays) -> list[Standing] | None:
    """`affine_grid_generator(transforms, sizes)`: a grid of each row's own transform, never of a row's own place."""
    return _as_results(call) if lays[0] == Cut(0) else None


def _matrices(call: Call, lays: Lays) -> list[Standing] | None:
    """Functions of matrices: rows in a dim before the last two (of vectors beside them: before the last)."""
    if _columns(call, lays):
        return _as_results(call)
    rank = max(len(value.shape) for value in call.tensors)
    solved = call.target.rpartition("::")[2].startswith("linalg_solve") and "triangular" not in call.target
    if solved and lays[1] is WHOLE and len(call.tensors[1].shape) == rank - 1:
        return None  # taken for a vector of each matrix where there are as many of them as it has rows
    for value, lay in zip(call.tensors, lays, strict=True):
        inner = 2 if len(value.shape) == rank else 1
        if lay is not WHOLE and not (isinstance(lay, Cut) and lay.parts == 1 and lay.dim < len(value.shape) - inner):
            return None
    return _as_results(call)


def _columns(call: Call, lays: Lays) -> bool:
    """Whether rows are the columns that a triangular matrix, the same for all, is solved for (`MultivariateNormal`)."""
    if call.name != "linalg_solve_triangular" or call.argument(4, "left", True) is not True:
        return False
    return lays[0] is WHOLE and lays[1] == Cut(len(call.tensor(1).shape) - 1)


def _recurrent(call: Call, lays: Lays) -> list[Standing] | None:
    """`lstm(x, states, weights, ..., batch_first)`, `gru`, `rnn`: x in dim 0 or 1, states in dim 1; without dropout
    between layers, which is not keyed by rows (a capture has divided such ops)."""
    if call.argument(6, "train", False) is True and call.argument(5, "dropout", 0.0):
        return None
    first = call.arguments[-1] is True
    x, others = lays[0], lays[1:]
    states = (
        len(call.arguments[1])
        if isinstance(call.arguments[1], tuple) and not isinstance(call.arguments[1], Value)
        else 1
    )
    fits = x == Cut(0 if first else 1) and all(lay in (WHOLE, Cut(1)) for lay in others[:states])
    return _as_results(call) if fits and all(lay is WHOLE for lay in others[states:]) else None


def _bags(call: Call, lays: Lays) -> list[Standing] | None:
    """`embedding_bag(table, ids, offsets)` of rows of equal length: each row's ids lie together."""
    table, ids, offsets, *more = lays
    size = call.tensor(1).shape
    equal = isinstance(offsets, RowNumbers) and len(size) == 1 and offsets.of == size[0]
    if table is not WHOLE or ids != Cut(0) or not equal or any(lay not in (WHOLE, Cut(0)) for lay in more):
        return None
    if call.argument(3, "scale_grad_by_freq", False) is True:
        return None
    return [Cut(0), *(Mixed("is what an embedding bag keeps for its backward") for _ in call.outputs[1:])]


def _added(call: Call, lays: Lays) -> list[Standing] | None:
    """`index_add(x, dim, ids, values)`: rows of other dims, or what rows add to something whole."""
    dim = integer(call.argument(1, "dim")) % len(call.tensor(0).shape)
    x, ids, values = lays[0], lays[1], lays[2]
    if isinstance(x, Cut) and x == values and x.dim != dim and ids is WHOLE:
        return [x]
    return None


def _searched(call: Call, lays: Lays) -> list[Standing] | None:
    """`searchsorted(ordered, values)`: in one order for all rows, or one for each."""
    if len(lays) < 2:
        return None  # a number is looked for
    ordered, values = lays[0], lays[1]
    if ordered is WHOLE and len(call.tensor(0).shape) == 1 and isinstance(values, Cut):
        return [values]
    return [values] if ordered == values == Cut(0) and len(call.tensor(0).shape) > 1 else None


def _bucketed(call: Call, lays: Lays) -> list[Standing] | None:
    """`bucketize(values, bounds)`."""
    if not isinstance(call.arguments[0], Value):
        return None  # a number
    return [lays[0]] if isinstance(lays[0], Cut) and all(lay is WHOLE for lay in lays[1:]) else None


def _filled_places(call: Call, lays: Lays) -> list[Standing] | None:
    """`index_fill(x, dim, places, value)`: the same places of every row."""
    return _along(1, -1)(call, lays) if all(lay is WHOLE for lay in lays[1:]) else None


def _distances(call: Call, lays: Lays) -> list[Standing] | None:
    """`cdist(a, b)`: of the rows of a to something whole, or within each row."""
    if len(call.tensor(0).shape) > 2 or len(call.tensor(1).shape) > 2:
        return _first(call, lays)
    return [Cut(0)] if lays[0] == Cut(0) and lays[1] is WHOLE else None


def _contracted(call: Call, lays: Lays) -> list[Standing] | None:
    """`tensordot(a, b, dims, dims)`: rows of a dim that stays, or a sum over rows of both."""
    if any(not isinstance(lay, Cut) or lay.parts > 1 or lay.own for lay in lays if lay is not WHOLE):
        return None
    places = []
    for at, lay in enumerate(lays):
        if isinstance(lay, Cut):
            dims = [dim % len(call.tensor(at).shape) for dim in integers(call.arguments[2 + at])]
            places.append(dims.index(lay.dim) if lay.dim in dims else -1)
    if len(places) == 1:
        return _as_results(call) if places[0] < 0 else None
    return [PARTIAL] if places[0] == places[1] >= 0 else None


def _ctc(call: Call, lays: Lays) -> list[Standing] | None:
    """`ctc_loss(scores, targets, lengths, lengths, blank, reduction)`: scores (time, rows, classes)."""
    apart = lays[0] == Cut(1) and all(lay == Cut(0) for lay in lays[1:]) and len(call.tensor(1).shape) == 2
    return ([PARTIAL] if integer(call.argument(5, "reduction", 1), 1) else [Cut(0)]) if apart else None


def _losses(call: Call, lays: Lays) -> list[Standing] | None:
    """Losses of each row by its own: reduced they are a part. Of one dim some take all rows for one vector."""
    vectors = _OF_VECTORS.get(call.target.rpartition("::")[2], 0)
    together = any(lay == Cut(0) and len(one.shape) < 2 for lay, one in zip(lays[:vectors], call.tensors, strict=False))
    if (
        together
        or not _aligned(call, lays[:vectors] if vectors else lays)
        or any(lay not in (WHOLE, Cut(0)) for lay in lays)
    ):
        return None
    return [PARTIAL] if not call.outputs[0].shape else _as_results(call)


def _scattered(call: Call, lays: Lays) -> list[Standing] | None:
    """`masked_scatter(x, mask, numbers)`: the places of each row take its own numbers, which the run sees to."""
    x, mask, numbers = call.tensors
    filled = call.outputs[0].shape == x.shape and row_dims(numbers.shape) == [0]
    outermost = filled and len(mask.shape) == len(x.shape) and mask.shape[0] == x.shape[0]
    return [Cut(0)] if outermost and all(lay == Cut(0) for lay in lays) else None


def fills_in_turn(call: Call) -> bool:
    """Whether the op fills the places of a mask with numbers one after another."""
    return row_rule(call) is _scattered


def row_mean(call: Call) -> bool:
    """Whether a loss of rows is their mean, so that a piece's counts by its share."""
    name = call.target.rpartition("::")[2]
    return name in _REDUCTIONS and integer(call.argument(_REDUCTIONS[name], "reduction", 1), 1) == 1


def _as_results(call: Call) -> list[Standing]:
    """Each result with rows where its sizes say they are."""
    return [Cut(dims[0]) if (dims := row_dims(out.shape)) else Mixed("has no rows in a result") for out in call.outputs]


#: Losses of vectors for each row: how many.
_OF_VECTORS = {
    "multi_margin_loss": 1, "multilabel_margin_loss": 2, "cosine_embedding_loss": 2, "triplet_margin_loss": 3,
}  # fmt: skip
#: Losses with the place of their reduction.
_REDUCTIONS: Mapping[str, int] = {
    "multi_margin_loss": 5, "multilabel_margin_loss": 2, "cosine_embedding_loss": 4, "margin_ranking_loss": 4,
    "hinge_embedding_loss": 3, "triplet_margin_loss": 7, "poisson_nll_loss": 5, "ctc_loss": 5,
}  # fmt: skip

_RULES: Mapping[RowRule, str] = {
    _first: "grid_sampler grid_sampler_2d grid_sampler_3d bilinear prelu im2col col2im "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell max_unpool2d max_unpool3d view_as_complex view_as_real "
    "pairwise_distance native_channel_shuffle channel_shuffle diag_embed "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    _along(2, -1): "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft kthvalue trapezoid "
    "trapz cumulative_trapezoid linalg_cross linalg_vecdot",
    _along(2, -2, -1): "fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_hfft2 fft_ihfft2 linalg_matrix_norm",
    _same_dim(_transformed): "fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfftn fft_ihfftn",
    _same_dim(_turned): "rot90",
    _same_dim(_last): "linalg_vander",
    _signals: "stft",
    _inner: "inner",
    _chained: "linalg_multi_dot",
    _among: "isin",
    _grids: "affine_grid_generator",
    _along(2, 1): "cosine_similarity",
    _along(2): "quantile nanquantile cross",
    _along(1, -1): "logcumsumexp unfold mode",
    _filled_places: "index_fill",
    _along(1): "fft_fftshift fft_ifftshift",
    _matrices: "linalg_inv inverse linalg_inv_ex linalg_solve linalg_solve_ex linalg_cholesky linalg_cholesky_ex "
    "cholesky linalg_qr qr linalg_eigh linalg_eigvalsh linalg_svd svd linalg_svdvals linalg_det det linalg_slogdet "
    "slogdet logdet matrix_exp linalg_matrix_exp linalg_pinv linalg_matrix_power matrix_power linalg_solve_triangular "
    "triangular_solve cholesky_solve linalg_lu linalg_lu_factor linalg_eig linalg_eigvals linalg_cond cholesky_inverse "
    "linalg_householder_product",
    _recurrent: "lstm gru rnn_tanh rnn_relu",
    _bags: "embedding_bag",
    _added: "index_add index_copy index_reduce",
    _searched: "searchsorted",
    _bucketed: "bucketize",
    _distances: "cdist",
    _contracted: "tensordot",
    _ctc: "ctc_loss",
    _scattered: "masked_scatter",
    _losses: "multi_margin_loss multilabel_margin_loss cosine_embedding_loss margin_ranking_loss "
    "hinge_embedding_loss triplet_margin_loss poisson_nll_loss",
}  # fmt: skip
_BY_NAME: Mapping[str, RowRule] = {name: rule for rule, names in _RULES.items() for name in names.split()}
