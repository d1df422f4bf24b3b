"""Family 10: what a capture takes for granted: sizes of one, memory of one's own, modes that stay, state that is seen.

A hostile reader of the runtime and a stranger with the README wrote these.
"""
# ruff: noqa: D102

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.parity.zoo.entry import entry


class Plain(nn.Module):
    """Three layers and a cross entropy; `made` gives it more, `features` is what the last one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.made()

    def made(self) -> None:
        """More parts."""

    def features(self, h: Tensor) -> Tensor:
        """What the middle layer reads."""
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.middle(self.features(torch.tanh(self.first(x)))))
        return functional.cross_entropy(self.last(h), y)


class SqueezedRows(Plain):
    """squeeze() of (rows, 4, 1, 4), which takes the rows too where there is one."""

    def features(self, h: Tensor) -> Tensor:
        return h.view(-1, 4, 1, 4).squeeze().cumsum(1).flatten(1)


class SqueezedNothing(Plain):
    """squeeze(0) of many rows."""

    def features(self, h: Tensor) -> Tensor:
        return h.view(-1, 4, 4).squeeze(0).cumsum(1).flatten(1)


class SqueezedPair(Plain):
    """squeeze(1) of a dim of two, of which a device has one."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.first(x)).view(-1, 2, 8).sin().squeeze(1).cos()
        return (h * x[:, :1, None]).exp().mean() + 0 * super().forward(x, y)


class Transposed(Plain):
    """A parameter whose memory is laid out column by column, as converted checkpoints have them."""

    def made(self) -> None:
        self.table = nn.Parameter((torch.randn(16, 6) * 0.3).t())

    def features(self, h: Tensor) -> Tensor:
        return h + functional.softmax(h @ self.table.t(), -1) @ self.table


class TypedMask(Plain):
    """A mask that takes the type of what the batch made, as in the published Llama."""

    def features(self, h: Tensor) -> Tensor:
        h = h.view(-1, 4, 4)
        scores = h @ h.transpose(1, 2) + torch.full((4, 4), -10.0).triu(diagonal=1).type_as(h)
        return (functional.softmax(scores, -1) @ h).flatten(1)


class PoweredInPlace(Plain):
    """A square in place, whose other form has its overloads named otherwise."""

    def features(self, h: Tensor) -> Tensor:
        return h.add(0.5).pow_(2)


def _written(h: Tensor, bias: Tensor) -> Tensor:
    h = h + bias
    return h * 0.5 * (1.0 + torch.tanh(0.79788456 * h * (1 + 0.044715 * h * h)))


with warnings.catch_warnings():  # TorchScript is deprecated, and in use
    warnings.simplefilter("ignore", DeprecationWarning)
    _fused = torch.jit.script(_written)


class Scripted(Plain):
    """A function of TorchScript, which runs other ops once it has been seen some times (Megatron-LM's gelu)."""

    def features(self, h: Tensor) -> Tensor:
        return _fused(h, self.last.weight.sum(0))


class Looped(nn.Module):
    """Goes as often as a value says, which no export can."""

    def forward(self, h: Tensor) -> Tensor:
        for _ in range(int(h.detach().abs().sum() > 0) + 1):
            h = torch.tanh(h)
        return h


class LateHooks(Plain):
    """Hooks that forward puts on its parts once, beside a part that makes exports fail (transformers' mixtures)."""

    def made(self) -> None:
        self.hooked, self.looped = False, Looped()

    def features(self, h: Tensor) -> Tensor:
        if not self.hooked:
            self.middle.register_forward_hook(lambda part, given, made: made * 1.5)
            self.hooked = True
        return self.looped(h)


class SharedMemory(Plain):
    """Tied by .data: two parameters in one memory."""

    def made(self) -> None:
        self.middle.weight.data = self.first.weight.data


class SharedBuffers(Plain):
    """A buffer that is a part of another, which forward writes."""

    def made(self) -> None:
        self.register_buffer("full", torch.ones(16))
        self.register_buffer("part", self.get_buffer("full")[:4])

    def features(self, h: Tensor) -> Tensor:
        self.get_buffer("full").mul_(0.7)
        return h * self.get_buffer("part").sum()


class EvalAfterwards(Plain):
    """A batch norm that forward puts in evaluation after its first use."""

    def made(self) -> None:
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = functional.cross_entropy(self.last(self.norm(self.first(x))), y)
        self.norm.eval()
        return loss


class FrozenAfterwards(Plain):
    """A layer that forward freezes after its first use."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        self.middle.requires_grad_(False)
        return loss


class FrozenForAWhile(Plain):
    """A layer that learns nothing of one of its uses, as GANs' critics."""

    def features(self, h: Tensor) -> Tensor:
        self.middle.requires_grad_(False)
        h = h + self.middle(h)
        self.middle.requires_grad_(True)
        return h


class HiddenTeacher(Plain):
    """A moving average of a layer, kept in a list as many keep teachers."""

    def made(self) -> None:
        self.hidden = [copy.deepcopy(self.middle).double().requires_grad_(False)]

    def features(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            for own, new in zip(self.hidden[0].parameters(), self.middle.parameters(), strict=True):
                own.lerp_(new.to(own.dtype), 0.5)
        return h + self.hidden[0](h.double()).to(h.dtype).tanh()


class ToldToCompile(Plain):
    """Something else while it is compiled or exported."""

    def features(self, h: Tensor) -> Tensor:
        return h * (2 if torch.compiler.is_compiling() or torch.compiler.is_exporting() else 1)


class Strided(Plain):
    """as_strided of a value whose dims lie in another order."""

    def features(self, h: Tensor) -> Tensor:
        return h.view(-1, 4, 4).transpose(1, 2).sin().as_strided((h.shape[0], 16), (16, 1))


class StridedInOrder(Plain):
    """as_strided of a value that lies in order."""

    def features(self, h: Tensor) -> Tensor:
        return torch.cat([h, h.sin()], 1).as_strided((h.shape[0], 16), (32, 2))


class SummedScalar(Plain):
    """A sum over a dim of a number without dims."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, y).sum(-1)


class RepeatedToSize(Plain):
    """repeat_interleave that is told the size of its result."""

    def features(self, h: Tensor) -> Tensor:
        return torch.repeat_interleave(h.view(-1, 4, 4), 2, 1, output_size=8).flatten(1)[:, ::2]


class SetByFirstBatch(Plain):
    """A bias that the first batch sets behind the back of autograd, as in Glow (arXiv:1807.03039)."""

    def made(self) -> None:
        self.set, self.shift = False, nn.Parameter(torch.zeros(16))

    def features(self, h: Tensor) -> Tensor:
        if not self.set:
            self.shift.data.copy_(-h.mean(0).data)
            self.set = True
        return h + self.shift


class DataRead(Plain):
    """Reads a weight without its gradient by .data."""

    def features(self, h: Tensor) -> Tensor:
        return h * self.first.weight.data.mean()


class LastWeights(Plain):
    """A pull towards the weights of the step before, kept in a buffer."""

    def made(self) -> None:
        self.register_buffer("before", torch.zeros(16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y) + (self.first.bias - self.get_buffer("before")).square().sum()
        with torch.no_grad():
            self.get_buffer("before").copy_(self.first.bias)
        return loss


class LerpedMean(Plain):
    """A running mean of the batch, moved by lerp_ and read before: its readers and its writer agree on it."""

    def made(self) -> None:
        self.register_buffer("centre", torch.zeros(16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x - self.get_buffer("centre"), y)
        self.get_buffer("centre").lerp_(x.mean(0), 0.1)
        return loss


class WrittenAsOut(Plain):
    """A buffer that an op is given as `out`, behind what it reads."""

    def made(self) -> None:
        self.register_buffer("centre", torch.zeros(16))

    def features(self, h: Tensor) -> Tensor:
        centred, most = h - self.get_buffer("centre"), h.detach().amax(0)
        torch.maximum(most, self.get_buffer("centre"), out=self.get_buffer("centre"))
        return centred


class Filter(nn.Module):
    """A product with complex numbers, one for each frequency."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.randn(9, dtype=torch.complex64))

    def forward(self, h: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(h, dim=-1) * self.gains, n=16, dim=-1)


class Frequencies(Plain):
    """A block of complex parameters beside blocks of real ones."""

    def made(self) -> None:
        self.filter = Filter()

    def features(self, h: Tensor) -> Tensor:
        return self.filter(h)


class NumbersAndLists(Plain):
    """Writes a number where a mask is, and swaps columns named by a list: on meta both lose their values."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x).view(-1, 4, 4)
        h[x.view(-1, 4, 4) > 1] = 0.0
        h[:, [0, 2]] = h[:, [2, 0]].clone()
        return functional.cross_entropy(self.last(h.flatten(1)), y)


class OthersAlone(Plain):
    """Each row against the others, itself filled in (NT-Xent, arXiv:2002.05709)."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.normalize(torch.tanh(self.middle(torch.relu(self.first(x)))), dim=1)
        alike = h @ h.t()
        alike.fill_diagonal_(-1e9)
        return functional.cross_entropy(alike, torch.arange(x.shape[0], device=x.device) ^ 1) + 0 * y.sum()


class SortedAlong(Plain):
    """Each row's features in the order of their sizes, taken by numpy's name for a gather."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.first(x)
        least_first = torch.take_along_dim(h, h.argsort(dim=1), dim=1)
        return functional.cross_entropy(self.last(torch.cumsum(least_first, dim=1)), y)


_ENTRIES = (
    SqueezedRows, SqueezedNothing, SqueezedPair, Transposed, TypedMask, PoweredInPlace, Scripted, LateHooks,
    SharedMemory, SharedBuffers, EvalAfterwards, FrozenAfterwards, FrozenForAWhile, HiddenTeacher, ToldToCompile,
    Strided, StridedInOrder, SummedScalar, RepeatedToSize, SetByFirstBatch, DataRead, LastWeights, NumbersAndLists,
    OthersAlone, LerpedMean, WrittenAsOut, Frequencies, SortedAlong,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 16; y: int4 8") for build in _ENTRIES)
#: Of these, the ones whose models do what no export holds.
REFUSED = frozenset({
    "SharedMemory", "SharedBuffers", "EvalAfterwards", "FrozenAfterwards", "HiddenTeacher", "Strided",
    "SetByFirstBatch", "FrozenForAWhile",
})  # fmt: skip
