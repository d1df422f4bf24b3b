"""Models that write in place, and models with state: `Writer(NAME)` between two layers, and buffers of all kinds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, OUT = 16, 4
BATCH = (("x", (8, WIDTH)), ("y", (8, OUT)))


def _slice_scaled(h: Tensor) -> Tensor:
    h[:, :4] *= 2
    return h


def _complex_slice(h: Tensor) -> Tensor:
    frequencies = torch.fft.rfft(h, dim=-1)
    low = torch.zeros_like(frequencies)
    low[:, 1:4] = 2 * frequencies[:, 1:4].conj()
    low[:, 4] = frequencies[:, 2]
    low.narrow(-1, 5, 2).mul_(1j).add_(1)
    found: Tensor = torch.fft.irfft(low, n=WIDTH, dim=-1)
    return found


def _column_added(h: Tensor) -> Tensor:
    h[:, 3] += 1
    return h


def _view_assigned(h: Tensor) -> Tensor:
    v = h.view(-1, 4, 4)
    v[:, 0] = v[:, 1] * 3
    return h


def _slice_copied(h: Tensor) -> Tensor:
    h[:, :8].copy_(h[:, 8:] * 2)
    return h


def _slice_zeroed(h: Tensor) -> Tensor:
    h[:, :3].zero_()
    return h


def _slice_filled(h: Tensor) -> Tensor:
    h[:, 2:5].fill_(0.5)
    return h


def _masked(h: Tensor) -> Tensor:
    v = h[:, :8]
    v.masked_fill_(v.detach() < 0, 0.1)
    return h


def _indexed(h: Tensor) -> Tensor:
    h[h < 0] = 0.25
    h[:, torch.tensor([1, 3])] = 0.5
    return h


def _scattered(h: Tensor) -> Tensor:
    index = torch.arange(4).expand(h.shape[0], 4)
    h[:, :8].scatter_(1, index, h[:, 8:12] * 2)
    return h


def _zeros_filled(h: Tensor) -> Tensor:
    z = torch.zeros_like(h)
    z[:, :8] = h[:, 8:] * 2
    return z + h


def _empty_in_pieces(h: Tensor) -> Tensor:
    e = torch.empty_like(h)
    e[:, :8] = h[:, 8:]
    e[:, 8:] = h[:, :8] * 2
    return e


def _empty_with_a_gap(h: Tensor) -> Tensor:
    """What nobody writes nobody takes: it may be anything."""
    e = h.new_empty(h.shape[0], WIDTH)
    e[:, :8] = h[:, 8:]
    return h + torch.where(torch.arange(WIDTH, device=h.device) < 8, e, 0.0)


def _transposed(h: Tensor) -> Tensor:
    h.t()[0] = 2.0
    return h


def _permuted(h: Tensor) -> Tensor:
    v = h.view(-1, 4, 2, 2).permute(2, 0, 3, 1)
    v[1].mul_(3)
    return h


def _chunk_added(h: Tensor) -> Tensor:
    w = h.detach() * 2
    first, last = w.tensor_split(3, 1)[::2]
    last.add_(w[:, :1])
    torch.split(w, [4, 12], 1)[0].mul_(first.sum(1, keepdim=True))
    return h * w


def _unbound(h: Tensor) -> Tensor:
    w = h.detach().clone()
    v = w.view(-1, 4, 4).unbind(1)[1]
    v.add_(v.sum(1, keepdim=True))
    return h * w


def _out(h: Tensor) -> Tensor:
    e = torch.zeros(h.shape[0], 8).to(h)
    torch.add(h[:, :8].detach(), 1.0, out=e)
    return h * torch.cat([e, e], 1)


def _activation_of_view(h: Tensor) -> Tensor:
    functional.relu_(h.view(-1, 4, 4)[:, 1:3])
    return h


def _diagonal(h: Tensor) -> Tensor:
    g = h.unsqueeze(2) * h.unsqueeze(1)
    g.diagonal(dim1=1, dim2=2).zero_()
    return g.sum(2)


def _expanded(h: Tensor) -> Tensor:
    e = h.unsqueeze(1).expand(-1, 3, -1).clone()
    e[:, 1] *= 2
    return e.mean(1)


def _loop(h: Tensor) -> Tensor:
    out, before = torch.empty_like(h), h[:, 0]
    for i in range(WIDTH):
        before = 0.5 * before + 0.5 * h[:, i]
        out[:, i] = before
    return out


def _view_read_after_write(h: Tensor) -> Tensor:
    v = h[:, :4]
    h.mul_(2)
    return torch.cat([v, h[:, 4:]], 1)


def _narrowed(h: Tensor) -> Tensor:
    h.narrow(1, 2, 3).neg_()
    h[..., -1] -= h[..., 0]
    h[:, ::2] /= 2
    return h


def _detached(h: Tensor) -> Tensor:
    w = h.detach().clone()
    w[:, :2] = 0
    return h * w


def _whole_chain(h: Tensor) -> Tensor:
    return h.mul_(2).add_(1).relu_()


def _whole_copied(h: Tensor) -> Tensor:
    scores = h * 2
    scores[:, 0:] = (scores[:, 0:].view(-1, 4, 4) + h.view(-1, 4, 4)[:, :1]).view(-1, WIDTH)
    return scores.tanh()


def _whole_filled(h: Tensor) -> Tensor:
    bias = h * 2
    bias.zero_()
    return h + bias


def _type_kept(h: Tensor) -> Tensor:
    mask = torch.zeros(h.shape[0], WIDTH, dtype=torch.bool)
    mask[:, 2:5] |= h[:, 2:5] > 0
    count = torch.zeros(h.shape[0], 2, dtype=torch.int64)
    count[:, 0] += mask.sum(1)
    return h * mask + count[:, :1]


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    name.lstrip("_"): function
    for name, function in list(globals().items())
    if name.startswith("_") and getattr(function, "__annotations__", {}).get("h") == "Tensor"
}


class Writer(nn.Module):
    """Two layers, between which something is written in place."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.one, self.two, self.name = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT), name

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.two(WRITES[self.name](self.one(x))), y)


class Layer(nn.Module):
    """One of the layers of `Stateful`."""

    inner: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.set()

    def set(self) -> None:
        """Make what a kind of layer has beside."""

    def middle(self, h: Tensor) -> Tensor:
        """What it does between its products."""
        return h

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.outer(torch.tanh(self.middle(self.inner(h))))
        return h + made


class Counting(Layer):
    """Counts its steps, in three ways, and scales by that."""

    one: Tensor
    two: Tensor
    three: Tensor

    def set(self) -> None:
        for name in ("one", "two", "three"):
            self.register_buffer(name, torch.zeros(()))

    def middle(self, h: Tensor) -> Tensor:
        before = h / (self.one + 1)
        self.one += 1
        self.two.add_(2)
        self.three = self.three + self.two
        return before + h / (1 + self.three)


class HiddenCounting(Counting):
    """The same, of which torch's state_dict keeps only the last."""

    def set(self) -> None:
        super().set()
        for name in ("one", "two"):
            self.register_buffer(name, torch.zeros(()), persistent=False)


class Spectral(Layer):
    """A product of spectral norm one, whose vectors follow the weight."""

    def set(self) -> None:
        self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))


class OldSpectral(Layer):
    """The same by the older hook."""

    def set(self) -> None:
        self.inner = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))


class Averaging(Layer):
    """Subtracts a moving average of what it sees, kept in training only."""

    mean: Tensor

    def set(self) -> None:
        self.register_buffer("mean", torch.zeros(WIDTH))

    def middle(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return h - self.mean


class Deciding(Averaging):
    """Decides by values, so that it is opaque, and scales by the average of the steps before."""

    def middle(self, h: Tensor) -> Tensor:
        before = self.mean.clone()
        made = h * torch.cos(before) if h.sum() > 0 else h * (1 + before)
        with torch.no_grad():
            self.mean.mul_(0.5).add_(h.mean(0), alpha=0.5).add_(0.1)
        return made


class CountingRows(Layer):
    """Counts the rows that it saw."""

    seen: Tensor

    def set(self) -> None:
        self.register_buffer("seen", torch.zeros(()))

    def middle(self, h: Tensor) -> Tensor:
        self.seen += h.shape[0]
        return h


class Codebook(Layer):
    """The nearest of some vectors, which follow what they stand for."""

    book: Tensor

    def set(self) -> None:
        self.register_buffer("book", torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1)))

    def middle(self, h: Tensor) -> Tensor:
        index = torch.cdist(h, self.book).argmin(1)
        one_hot = functional.one_hot(index, 5).to(h.dtype)
        nearest = self.book[index]
        with torch.no_grad():
            self.book[:4] = 0.9 * self.book[:4] + 0.1 * (one_hot.t() @ h)[:4]
        return h + (nearest - h).detach()


class Stateful(nn.Module):
    """Some layers of a kind, the last plain."""

    def __init__(self, *kinds: type[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for kind in kinds)
        self.head = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.mse_loss(self.head(x), y)


def counting() -> nn.Module:
    return Stateful(Counting, Layer, Counting, Layer)


def hidden_counting() -> nn.Module:
    return Stateful(HiddenCounting, Layer, Counting, Layer)


def spectral() -> nn.Module:
    return Stateful(Spectral, OldSpectral, Spectral, Layer)


def averaging() -> nn.Module:
    return Stateful(Averaging, Layer)


def deciding() -> nn.Module:
    return Stateful(Deciding, Layer, Deciding, Layer)


def codebook() -> nn.Module:
    return Stateful(Layer, Codebook)


class Unreached(Layer):
    """Reads weights that no gradient comes back to: behind a detach, without gradients, by an argmax; a number too."""

    def set(self) -> None:
        self.behind, self.aside, self.chosen = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.number = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(3))

    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            aside = self.aside(h)
        which = functional.one_hot(self.chosen(h).argmax(1), WIDTH).to(h.dtype)
        made: Tensor = h * self.number.detach() + self.behind(h).detach() + aside + which
        return made


class Severed(Stateful):
    """A gradient reaches the last layers only; the first are alike, as a fold needs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 2:
                x = x.detach()
        return functional.mse_loss(self.head(x), y)


def unreached() -> nn.Module:
    return Stateful(Unreached, Layer, Unreached, Layer)


def severed() -> nn.Module:
    return Severed(*[Layer] * 5)


def borrowing() -> nn.Module:
    """The last layer reads weights of others, of one that a gradient reaches there and of one that none reaches."""
    first, second, last = Layer(), Unreached(), Unreached()
    last.behind.weight, last.aside.weight = first.outer.weight, second.aside.weight
    made = Stateful()
    made.layers.extend((first, second, Layer(), last))
    return made
