"""Models whose masks select what they sum, average, or take the loss of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH = 11, 8


class Tokens(nn.Module):
    """Tokens, some of which count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))


class Masked(Tokens):
    """The loss of the tokens that are masked, whose masks are made twice."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        return functional.cross_entropy(self.head(self.embed(x))[labels > 3], labels[labels > 3])


class Headed(Tokens):
    """A head for the masked ones alone."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        mask = labels > 3
        return functional.cross_entropy(self.head(self.inner(self.norm(self.embed(x)[mask]))), labels[mask])


class Placed(Tokens):
    """What the masked ones become is put back, at their places."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        hidden, places = self.embed(x), torch.where(labels > 0)
        out = torch.zeros_like(hidden)
        out[places] = self.norm(hidden[places])
        mean: Tensor = (out * hidden).mean() + hidden[places].norm(dim=-1).sum() / places[0].numel()
        return mean


class Positive(Tokens):
    """The mean of those losses that are large: how many, the run says."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        each = functional.cross_entropy(self.head(self.embed(x)).view(-1, WORDS), labels.view(-1), reduction="none")
        large: Tensor = each[each > 2.4].mean()
        return large


class Contrasted(Tokens):
    """Every row against every other, but itself: rows times rows numbers one after the other."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        rows = functional.normalize(self.inner(self.embed(x).mean(1)) + self.embed(labels).mean(1), dim=1)
        alike = rows @ rows.t()
        number: Tensor = alike[alike < 1 - 1e-9].exp().mean().log()
        return number


class Detected(Tokens):
    """Classes of all places by `one_hot`, and a distance of those alone that hold something."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        hidden, held = self.embed(x), labels > 3
        wanted = functional.one_hot(labels, WORDS).to(hidden.dtype) * held[..., None]
        classes = functional.binary_cross_entropy_with_logits(self.head(hidden), wanted, reduction="sum")
        apart = functional.smooth_l1_loss(self.norm(hidden)[held], self.inner(hidden)[held], reduction="sum")
        return (classes + apart) / held.sum().clamp(min=1)


class Picked(Tokens):
    """A number of each token, by its place in two dims, and the mean of those that are masked."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        scores, places = self.head(self.inner(self.embed(x))).view(-1, WORDS), labels.view(-1)
        each = functional.softplus(scores[torch.arange(places.shape[0]), places])
        mean: Tensor = each[x.view(-1) > 3].mean()
        return mean


class Triangles(Tokens):
    """Pairs of tokens and columns of each row, by masks that are made of plain numbers."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        hidden = self.inner(self.embed(x))
        pairs = (hidden @ hidden.mT)[:, torch.triu(torch.ones(6, 6), 1).bool()]
        even = hidden[..., torch.arange(WIDTH) % 2 == 0]
        loss = functional.cross_entropy(self.head(hidden).mT, labels)
        number: Tensor = loss + pairs.view(-1, 15).pow(2).mean() + even.mean()
        return number


class Paired(Tokens):
    """Rows in pairs: each other row of its own against all the others, taken by masks that are made of plain numbers
    and masks of what such masks take."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        first, second = (self.inner(self.embed(one).mean(1)) for one in (x, labels))
        rows, itself = x.shape[0], torch.eye(2 * x.shape[0], dtype=torch.bool)
        both = functional.normalize(torch.cat([first, second]), dim=1)
        owners = torch.cat([torch.arange(rows), torch.arange(rows)])
        alike = (owners.unsqueeze(0) == owners.unsqueeze(1)).float()[~itself].view(2 * rows, -1)
        scores = (both @ both.t())[~itself].view(2 * rows, -1)
        own, others = scores[alike.bool()].view(2 * rows, -1), scores[~alike.bool()].view(2 * rows, -1)
        return functional.cross_entropy(torch.cat([own, others], 1) / 0.1, torch.zeros(2 * rows, dtype=torch.long))


class Apart(Tokens):
    """Every row against every other, but itself, and nothing else that values decide."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        rows = self.inner(self.embed(x).mean(1)) + self.embed(labels).mean(1)
        number: Tensor = (rows @ rows.t())[~torch.eye(rows.shape[0], dtype=torch.bool)].pow(2).mean()
        return number


def by_one_mask(x: Tensor, y: Tensor, wide: Tensor) -> Tensor:
    """Of each row all numbers or none, summed by rows and by numbers, and written back."""
    out = torch.zeros_like(x)
    out[wide] = x[wide].exp()
    return (x[wide].view(-1, x.shape[-1]) * y[wide].view(-1, x.shape[-1]).sum(-1, keepdim=True)).pow(2).mean() + (
        out * y
    ).sum()


def columns_set(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """A selection of which columns are written and added to."""
    chosen = x[mask] * 2
    chosen[..., 0] = -1.5
    chosen[:, 1:3] = y[mask][:, 2:4]
    edges = chosen.cumsum(-1)
    edges[..., -1] += 0.5
    edges[:, 1] *= chosen[:, 0]
    return (edges * y[mask]).tanh().sum() + chosen.pow(2).mean()


def columns_seen(x: Tensor, mask: Tensor, after: bool) -> Tensor:
    """A selection that is written while it is seen in another, or through one of two."""
    chosen = x[mask] * 2
    first = chosen[:, 0]
    if after:
        chosen[:, 0] = 1.0
    else:
        flat = chosen.view(-1)
        first += 1.0
        first = flat
    return (chosen.sum(-1)).pow(2).mean() + first.sum()


def first_set(chosen: Tensor) -> Tensor:
    """One row is written, whichever it is."""
    chosen[0] = 1.0
    return chosen.sum()
