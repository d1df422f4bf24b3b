"""Family 3: writes through views."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Written(nn.Module):
    """Two products and a head; what is between the first two writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.two = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def written(self, h: Tensor) -> Tensor:
        """Features after the writes."""
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.written(self.one(x))
        return f.cross_entropy(self.head(torch.tanh(self.two(h))), y)


class ScaledSlice(Written):
    """h[:, :4] *= 2."""

    def written(self, h: Tensor) -> Tensor:
        h[:, :4] *= 2
        return h


class ColumnPlusOne(Written):
    """h[:, 3] += 1."""

    def written(self, h: Tensor) -> Tensor:
        h[:, 3] += 1
        return h


class WrittenView(Written):
    """A view of heads of which the first is replaced."""

    def written(self, h: Tensor) -> Tensor:
        v = h.view(len(h), 4, 4)
        v[:, 0] = v[:, 1].detach()
        return h


class FilledZeros(Written):
    """zeros_like, of which a half is written."""

    def written(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        z[:, :8] = h[:, 8:].sigmoid()
        return z + h


class TransposedWrite(Written):
    """h.t()[0] = ...: a column, seen as a row."""

    def written(self, h: Tensor) -> Tensor:
        h.t()[0] = 0.5
        return h


class CopiedHalf(Written):
    """copy_ into a slice, fill_ and zero_ of others."""

    def written(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[:, 4:8].copy_(h[:, :4].detach() * 2)
        h[:, 8:10].zero_()
        h[:, 15].fill_(0.25)
        return h


class MaskedInPlace(Written):
    """masked_fill_ of a view's negative part."""

    def written(self, h: Tensor) -> Tensor:
        left = h[:, :8]
        left.masked_fill_(left < 0, 0.0)
        return h


class BooleanWrite(Written):
    """h[h > 1] = 1."""

    def written(self, h: Tensor) -> Tensor:
        h[h > 0.5] = 0.5
        return h


class EmptyFilled(Written):
    """empty_like, filled piece by piece."""

    def written(self, h: Tensor) -> Tensor:
        out = torch.empty_like(h)
        for i in range(4):
            out[:, 4 * i : 4 * i + 4] = h[:, 4 * i : 4 * i + 4] * (i + 1)
        return out


class ScatteredInPlace(Written):
    """scatter_ and scatter_add_ along the features."""

    def written(self, h: Tensor) -> Tensor:
        out = torch.zeros_like(h)
        index = h.argsort(dim=1)
        out.scatter_(1, index, h)
        out.scatter_add_(1, index[:, :3], h[:, 3:6])
        return out


class IndexPut(Written):
    """index_put_ with accumulate."""

    def written(self, h: Tensor) -> Tensor:
        rows = torch.arange(len(h))
        h = h.clone()
        h.index_put_((rows, rows % 16), torch.ones(len(h), dtype=h.dtype), accumulate=True)
        return h


class ArangePut(Written):
    """h[arange, argmax] = 0: the largest of each row is put out."""

    def written(self, h: Tensor) -> Tensor:
        h = h * 1.0
        h[torch.arange(h.size(0)), h.argmax(1)] = 0
        return h


class ChunkAdded(Written):
    """add_ on what chunk gave."""

    def written(self, h: Tensor) -> Tensor:
        h = h.tanh()
        a, b = h.clone().chunk(2, dim=1)
        a = a.mul(2)
        a.add_(b)
        return torch.cat((a, b), 1)


class NarrowMul(Written):
    """narrow, then mul_, then clamp_."""

    def written(self, h: Tensor) -> Tensor:
        h = h + 0
        h.narrow(1, 2, 5).mul_(3).clamp_(-1, 1)
        return h


class InplaceReluView(Written):
    """ReLU(inplace=True) after a view."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def written(self, h: Tensor) -> Tensor:
        seen = h.view(-1, 2, 8)
        self.act(seen[:, 0])
        return h


class InplaceChain(Written):
    """mul_, add_, sub_, div_, sigmoid_ in one line."""

    def written(self, h: Tensor) -> Tensor:
        return h.mul_(2).add_(1).sub_(0.5).div_(3).sigmoid_()


class AliasLater(Written):
    """A view taken before the write, read after it."""

    def written(self, h: Tensor) -> Tensor:
        before = h[:, :8]
        h += 1
        return torch.cat((before, h[:, 8:]), dim=1)


class DiagonalWrite(Written):
    """The diagonal of each row's square is filled."""

    def written(self, h: Tensor) -> Tensor:
        square = h.reshape(-1, 4, 4).clone()
        square.diagonal(dim1=1, dim2=2).fill_(1.0)
        return square.flatten(1)


class PermutedWrite(Written):
    """A write through permute and select."""

    def written(self, h: Tensor) -> Tensor:
        cube = h.reshape(-1, 2, 2, 4) * 1
        cube.permute(3, 0, 1, 2)[1] -= 2
        return cube.flatten(1)


class UnbindAdded(Written):
    """unbind, then in place on one (under no_grad, as torch asks)."""

    def written(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            first = h.unbind(1)[0]
            first.add_(5)
        return h


class OutArgument(Written):
    """out= into a buffer made before."""

    def written(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            room = torch.empty_like(h)
            torch.mul(h, 2, out=room)
        return h + room


class SwapHalves(Written):
    """A swap by two slice writes and a clone."""

    def written(self, h: Tensor) -> Tensor:
        keep = h[:, :8].clone()
        h[:, :8] = h[:, 8:].clone()
        h[:, 8:] = keep
        return h


class EllipsisWrite(Written):
    """h[..., -1] and h[..., ::2]."""

    def written(self, h: Tensor) -> Tensor:
        h[..., -1] = 0
        h[..., ::2] *= -1
        return h


class DataWrite(Written):
    """.data, as old code has it."""

    def written(self, h: Tensor) -> Tensor:
        h.data.mul_(0.5)
        return h


class DetachedWrite(Written):
    """A detached view is written and shows in the original."""

    def written(self, h: Tensor) -> Tensor:
        d = h.detach()
        d[:, 5:] = 0
        return h


class InputWrite(Written):
    """The input itself is scaled in place."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone()
        x[:, 0] = x[:, 1] * 2
        return super().forward(x, y)


class RowWrite(Written):
    """h[0] = 0: the first row is put out."""

    def written(self, h: Tensor) -> Tensor:
        h[0] = 0
        return h


class HalfOfRows(Written):
    """The first half of the rows is scaled in place."""

    def written(self, h: Tensor) -> Tensor:
        h[: len(h) // 2] *= 3
        return h


class MaxNormWeights(Written):
    """Weights renormalised in place before use, as max-norm dropout papers do."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            norm = self.two.weight.norm(dim=1, keepdim=True).clamp(min=0.4)
            self.two.weight.mul_(norm.clamp(max=0.5) / norm)
        return super().forward(x, y)


class ZeroedPadding(nn.Module):
    """The padding row of an embedding is put to zero in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.embed.weight[0] = 0
        return f.cross_entropy(self.head(self.embed(tokens).mean(1)), y)


class StateWritten(nn.Module):
    """A recurrence that writes its states into one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.rec = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        states = x.new_zeros(x.shape[0], x.shape[1], 8)
        h = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            h = torch.tanh(self.inp(x[:, t]) + self.rec(h))
            states[:, t] = h
        return f.cross_entropy(self.head(states).transpose(1, 2), y)


class MaskTokens(nn.Module):
    """Learned vectors in the places of a mask, as masked models of speech and images have them, and of some places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 12), nn.Linear(12, 4)
        self.vector, self.other = nn.Parameter(torch.randn(12)), nn.Parameter(torch.randn(1, 1))
        self.places: Tensor
        self.register_buffer("places", torch.tensor([True, False, False, True, False]))

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        h = self.embed(tokens) * 2
        h[tokens < 5] = self.vector
        h[tokens > 15] = self.vector[None] * 2
        h[torch.where(tokens == 9)] = self.vector * 3
        turned = h.tanh().transpose(0, 1).clone()
        turned[self.places] = self.other
        return f.cross_entropy(self.head(turned.pow(2).mean(0)), y)


class PaddedCanvas(nn.Module):
    """A canvas of zeros into which an image is written, then a border of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 2, 3)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        h = self.conv(image)
        canvas = torch.zeros(h.shape[0], 4, 8, 8, dtype=h.dtype)
        canvas[:, :, 1:-1, 1:-1] = h
        canvas[:, :, 0].fill_(1)
        return f.mse_loss(self.out(canvas), target)


_PLAIN = (
    ScaledSlice, ColumnPlusOne, WrittenView, FilledZeros, TransposedWrite, CopiedHalf, MaskedInPlace, BooleanWrite,
    EmptyFilled, ScatteredInPlace, IndexPut, ArangePut, ChunkAdded, NarrowMul, InplaceReluView, InplaceChain,
    AliasLater, DiagonalWrite, PermutedWrite, UnbindAdded, OutArgument, SwapHalves, EllipsisWrite, DataWrite,
    DetachedWrite, InputWrite, RowWrite, HalfOfRows, MaxNormWeights,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
    entry(ZeroedPadding, "tokens: int20 8 5; y: int4 8"),
    entry(MaskTokens, "tokens: int20 8 5; y: int4 8"),
    entry(StateWritten, "x: normal 8 5 4; y: int3 8 5"),
    entry(PaddedCanvas, "image: normal 8 2 6 6; target: normal 8 2 6 6"),
)
