"""Family 7: selection, scattering, spectra, contractions and linear algebra in each row, and once over rows."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.algorithms import Algorithm


class KeptTopK(Algorithm):
    """The four largest stay, the others are zero."""

    def steps(self, h: Tensor) -> Tensor:
        values, index = h.topk(4, dim=-1)
        return torch.zeros_like(h).scatter(1, index, values)


class SortedRows(Algorithm):
    """Each row sorted, with the permutation undone on half."""

    def steps(self, h: Tensor) -> Tensor:
        values, index = torch.sort(h, dim=1, descending=True)
        return values + values.gather(1, index.argsort(1)) * 0.5


class ArgmaxGather(Algorithm):
    """The group with the largest norm, by gather."""

    def steps(self, h: Tensor) -> Tensor:
        groups = h.view(-1, 4, 4)
        best = groups.norm(dim=-1).argmax(1)
        return groups.gather(1, best[:, None, None].expand(-1, 1, 4)).repeat(1, 1, 4).flatten(1)


class ScatterSum(Algorithm):
    """scatter_add, scatter_reduce by buckets."""

    def steps(self, h: Tensor) -> Tensor:
        bucket = (torch.sigmoid(h) * 5).long().clamp(0, 4)
        total = h.new_zeros(len(h), 5).scatter_add(1, bucket, h)
        most = h.new_zeros(len(h), 5).scatter_reduce(1, bucket, h, reduce="amax", include_self=True)
        return h + total.gather(1, bucket) + most.gather(1, bucket)


class SoftHistogram(Algorithm):
    """A histogram by kernels, without bincount."""

    def steps(self, h: Tensor) -> Tensor:
        centres = torch.linspace(-2, 2, 16)
        return torch.exp(-((h[:, :, None] - centres) ** 2)).sum(1)


class SearchSorted(Algorithm):
    """Splines: searchsorted and bucketize into learned tables."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9))

    def steps(self, h: Tensor) -> Tensor:
        knots = torch.linspace(-1, 1, 8).to(h.dtype)
        return h * self.table[torch.searchsorted(knots, h.detach())] + self.table[torch.bucketize(h.detach(), knots)]


class WhereOneHot(Algorithm):
    """where, one_hot, tril, eye, bitwise logic on comparisons."""

    def steps(self, h: Tensor) -> Tensor:
        hot = f.one_hot(h.argmax(-1), 16).bool()
        return torch.where(hot | ((h > 0) & ~(h > 1)), h, 0.1 * h)


class FourierMixed(Algorithm):
    """FNet and a learned filter: rfft, complex product, irfft; fft2 of a square."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, 2) / 3)

    def steps(self, h: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(h, dim=-1) * torch.view_as_complex(self.filter)
        mixed = torch.fft.irfft(spectrum, n=16, dim=-1)
        return mixed + torch.fft.fft2(h.view(-1, 4, 4)).real.flatten(1)


class FourierOfRows(Algorithm):
    """fft2 on (rows, features), by one who forgot the batch."""

    def steps(self, h: Tensor) -> Tensor:
        return torch.fft.fft2(h).real / 4


class ComplexPhase(Algorithm):
    """Complex numbers: polar, abs, angle, conj."""

    def steps(self, h: Tensor) -> Tensor:
        z = torch.complex(h[:, :8], h[:, 8:])
        turned = z * torch.polar(torch.ones(8), torch.arange(8.0)).to(z.dtype) + z.conj() * 0.5
        return torch.cat((turned.abs(), torch.view_as_real(turned).sum(-1)), 1)


class ManyEinsums(Algorithm):
    """einsum: outer products, traces, an ellipsis, a contraction over everything but rows."""

    def steps(self, h: Tensor) -> Tensor:
        s = h.view(-1, 4, 4)
        outer = torch.einsum("bi,bj->bij", h[:, :4], h[:, 4:8])
        trace = torch.einsum("bii->b", s)
        product = torch.einsum("...ij,...jk->...ik", s, outer)
        return (product * torch.einsum("bij,bij->b", s, outer)[:, None, None]).flatten(1) + trace[:, None]


class EinsumOverRows(Algorithm):
    """einsum that sums the rows away."""

    def steps(self, h: Tensor) -> Tensor:
        return h @ torch.einsum("bi,bj->ij", h, h) / 8


def _definite(h: Tensor) -> Tensor:
    s = h.view(-1, 4, 4)
    return s @ s.mT + torch.eye(4, dtype=h.dtype)


class SolvedRows(Algorithm):
    """A linear system for each row, its inverse and determinant."""

    def steps(self, h: Tensor) -> Tensor:
        a = _definite(h)
        solved = torch.linalg.solve(a, h.view(-1, 4, 4))
        return (solved + torch.linalg.inv(a)).flatten(1) + torch.linalg.slogdet(a).logabsdet[:, None]


class FactoredRows(Algorithm):
    """Cholesky and QR of each row, triangular solve."""

    def steps(self, h: Tensor) -> Tensor:
        low = torch.linalg.cholesky(_definite(h))
        q, r = torch.linalg.qr(_definite(h))
        return (torch.linalg.solve_triangular(low, q, upper=False) + r).flatten(1)


class EigenRows(Algorithm):
    """Eigenvalues of a symmetric matrix, a matrix exponential, singular values."""

    def steps(self, h: Tensor) -> Tensor:
        values = torch.linalg.eigvalsh(_definite(h))
        grown = torch.linalg.matrix_exp(0.1 * h.view(-1, 4, 4))
        return grown.flatten(1) + torch.cat((values, torch.linalg.svdvals(_definite(h))), 1).repeat(1, 2)


class RidgeHead(Algorithm):
    """A ridge regression over the batch inside the forward (meta-learning)."""

    def steps(self, h: Tensor) -> Tensor:
        w = torch.linalg.solve(h.T @ h + torch.eye(16, dtype=h.dtype), h.T @ h.tanh())
        return h @ w


_PLAIN = (
    KeptTopK, SortedRows, ArgmaxGather, ScatterSum, SoftHistogram, SearchSorted, WhereOneHot, FourierMixed,
    FourierOfRows, ComplexPhase, ManyEinsums, EinsumOverRows, SolvedRows, FactoredRows, EigenRows, RidgeHead,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN)
