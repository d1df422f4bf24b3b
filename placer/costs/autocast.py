"""Which type torch.autocast runs an op in: products in its own, the ops of its float32 lists in float32.

The lists are those of torch's documentation ("Autocast Op Reference": ops that autocast to `lower_precision_fp`, to
float32), which CPUs and CUDA devices do not share; a test asks torch's dispatcher about each. All others run in the
widest type of what they read. Grouped products of experts are on neither list: they run in the type that they get.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from placer.cluster.cluster import Backend
from placer.graph import ITEM_BYTES, Affine, Op, Parameter, Tensor, affine_sum

EVERYWHERE = frozenset({
    "cross_entropy_loss", "nll_loss", "nll_loss_forward", "nll_loss2d", "mse_loss", "smooth_l1_loss", "l1_loss",
    "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss",
    "cosine_embedding_loss", "prod", "cdist",
})  # fmt: skip
ON_CUDA = frozenset({
    "softmax", "_softmax", "log_softmax", "_log_softmax", "layer_norm", "native_layer_norm", "group_norm",
    "rms_norm", "exp", "log", "log10", "log1p", "log2", "expm1", "pow", "square", "rsqrt", "sum", "norm", "cumsum",
    "cumprod", "logsumexp", "softplus", "cosh", "sinh", "tan", "acos", "asin", "erfinv", "reciprocal",
    "linalg_vector_norm", "linalg_matrix_norm", "dist", "cosine_similarity", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d",
    "upsample_trilinear3d", "soft_margin_loss", "margin_ranking_loss", "hinge_embedding_loss", "triplet_margin_loss",
    "multi_margin_loss",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
})  # fmt: skip
ON_CPUS = frozenset({
    "avg_pool3d", "adaptive_avg_pool3d", "max_pool3d", "reflection_pad1d", "reflection_pad2d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "trace", "ctc_loss", "grid_sampler", "view_as_complex",
})  # fmt: skip
FLOAT32: dict[Backend, frozenset[str]] = {"cuda": EVERYWHERE | ON_CUDA, "cpu": EVERYWHERE | ON_CPUS}
# Of those the ones that read what they get and reckon in float32 by themselves, as with `dtype=torch.float32`.
BY_THEMSELVES = frozenset({"sum", "prod", "softmax", "log_softmax", "cumsum", "cumprod"})
# Products of torch's list that are no kind of product here.
LOWERED = frozenset({"prelu", "mv", "addmv", "addr", "linalg_vecdot", "linalg_multi_dot"})
# Norms run in the type of what they norm, whatever that of their weights, where they are on no list.
AS_FIRST = frozenset({
    "batch_norm", "_native_batch_norm_legit", "native_batch_norm", "cudnn_batch_norm", "instance_norm", "layer_norm",
    "native_layer_norm", "group_norm", "native_group_norm", "rms_norm",
})  # fmt: skip
# Products of experts, whole or as a library stands in for them.
NOT_LOWERED = frozenset({"_grouped_mm", "grouped_mm", "grouped_mm_fallback"})


class Copying(NamedTuple):
    """Bytes that copies move, read and written, per byte that their op reads: of what does not grow with rows, and of
    what does."""

    fixed: float = 0.0
    per_row: float = 0.0

    def moved(self, read: Affine, rows: int) -> float:
        """Bytes moved for an op that reads so many."""
        return self.fixed * read.fixed + self.per_row * read.per_row * rows


NO_COPIES = Copying()


@dataclass(frozen=True, slots=True)
class Copy:
    """An operand that autocast copies into the type that it has an op read: the number of the input, elements, bytes of
    one before and after, whether it is a parameter, whether one that is copied once for all that read it while a stage
    runs forward (a leaf of autograd that trains), and whether a gradient comes back for it."""

    number: int
    elements: Affine
    before: int
    after: int
    held: bool
    cached: bool
    trains: bool

    @property
    def bytes(self) -> Affine:
        """Bytes of the copy."""
        return self.elements.scaled(self.after)


def copy_of(value: Tensor | Parameter, number: int, before: int, after: int) -> Copy:
    """The copy of an input."""
    if isinstance(value, Parameter):
        trains = value.trainable and not value.buffer
        return Copy(number, Affine(value.elements), before, after, held=True, cached=trains, trains=trains)
    return Copy(number, elements_of(value), before, after, held=False, cached=False, trains=value.requires_grad)


def copying(op: Op, copies: Iterable[Copy], *, reads_them: bool) -> Copying:
    """What making copies moves, for an op whose own reads are counted of the copies (`reads_them`), or of what they
    were made of."""
    moved = affine_sum(one.elements.scaled(one.after + (one.before if reads_them else one.after)) for one in copies)
    return Copying(*(one / read if read else 0.0 for one, read in zip(moved, op.read_bytes, strict=True)))


def elements_of(value: Tensor) -> Affine:
    """Elements of a value for any number of rows."""
    size = value.bytes_at(1) // ITEM_BYTES[value.dtype]
    return Affine(0, size) if value.batched else Affine(size)
