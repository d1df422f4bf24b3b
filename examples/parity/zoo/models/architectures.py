"""Family 7: architectures of papers, in small."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class RoutedExperts(nn.Module):
    """Top-2 of four experts: tokens are gathered by index and added back."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            share = (p * (chosen == k)).sum(-1, keepdim=True)
            out = out + share * expert(x)
        return f.cross_entropy(self.head(x + out), y)


class IndexedExperts(RoutedExperts):
    """The same with rows picked by a mask: as many as the values say."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        best = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            out[best == k] = expert(x[best == k])
        return f.cross_entropy(self.head(x + out), y)


class HyperNetwork(nn.Module):
    """The weights of a product are made for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.bias, self.head = nn.Linear(3, 8 * 6), nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, task: Tensor, y: Tensor) -> Tensor:
        w = self.make(task).view(-1, 6, 8)
        h = torch.baddbmm(self.bias(task).unsqueeze(2), w, x.unsqueeze(2)).squeeze(2)
        return f.cross_entropy(self.head(torch.relu(h)), y)


class Capsules(nn.Module):
    """Dynamic routing between capsules."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, 4, 5) / 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        votes = torch.einsum("bic,ijcd->bijd", x, self.w)
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(3):
            v = (logits.softmax(2)[..., None] * votes).sum(1)
            squared = v.square().sum(-1, keepdim=True)
            v = squared / (1 + squared) * v / (squared + 1e-8).sqrt()
            logits = logits + (votes * v[:, None]).sum(-1)
        t = f.one_hot(y, 3).to(v.dtype)
        n = v.norm(dim=-1)
        return (t * f.relu(0.9 - n).square() + 0.5 * (1 - t) * f.relu(n - 0.1).square()).sum(-1).mean()


class GraphNet(nn.Module):
    """Message passing on a dense adjacency for each row, with degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, edges: Tensor, y: Tensor) -> Tensor:
        a = edges.to(nodes.dtype) + torch.eye(nodes.shape[1])
        a = a / a.sum(-1, keepdim=True)
        h = torch.relu(a @ self.one(nodes))
        return f.cross_entropy(self.head((a @ self.two(h)).relu().mean(1)), y)


class OneGraph(nn.Module):
    """Nodes are the rows: one graph's adjacency is rows by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, adjacency: Tensor, y: Tensor) -> Tensor:
        a = adjacency / adjacency.sum(1, keepdim=True)
        return f.cross_entropy(self.head(a @ torch.relu(a @ self.one(nodes))), y)


class Recommender(nn.Module):
    """DLRM: several tables, dense features, dot products of all pairs."""

    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 6) for size in (50, 7, 20))
        self.bottom, self.top = nn.Linear(4, 6), nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("pairs", torch.triu_indices(4, 4, 1), persistent=False)

    def forward(self, dense: Tensor, user: Tensor, item: Tensor, shop: Tensor, clicked: Tensor) -> Tensor:
        d = torch.relu(self.bottom(dense))
        each = [table(index) for table, index in zip(self.tables, (user, item, shop), strict=True)]
        z = torch.stack([d, *each], dim=1)
        crossed = torch.bmm(z, z.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        logit = self.top(torch.cat((d, crossed), 1)).squeeze(1)
        return f.binary_cross_entropy(torch.sigmoid(logit), clicked.to(logit.dtype))


class Factorised(nn.Module):
    """A factorisation machine: half of (square of sum less sum of squares)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.first, self.second = nn.Parameter(torch.zeros(1)), nn.Embedding(40, 1), nn.Embedding(40, 5)

    def forward(self, fields: Tensor, y: Tensor) -> Tensor:
        e = self.second(fields)
        pair = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1)
        return f.mse_loss(self.bias + self.first(fields).sum((1, 2)) + pair, y)


class SmallUnet(nn.Module):
    """Down twice and up twice with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 6), (6, 8), (8, 8)))
        self.up1, self.up2 = nn.ConvTranspose2d(8, 8, 2, 2), nn.ConvTranspose2d(16, 6, 2, 2)
        self.out = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        a = torch.relu(self.a(x))
        b = torch.relu(self.b(f.max_pool2d(a, 2)))
        c = torch.relu(self.c(f.max_pool2d(b, 2)))
        up = self.up2(torch.cat((self.up1(c), b), 1))
        return f.mse_loss(self.out(torch.cat((up, a), 1)), target)


class Inception(nn.Module):
    """Four branches beside each other, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
        self.branches = nn.ModuleList(
            nn.ModuleList((nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(8, 2, 5, padding=2)))
            for _ in range(2)
        )
        self.pool = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.stem(x)
        for branches in self.branches:
            pooled = self.pool(f.max_pool2d(h, 3, 1, 1))
            assert isinstance(branches, nn.ModuleList)
            h = torch.cat([*(branch(h) for branch in branches), pooled], 1).relu()
        return f.cross_entropy(self.head(h.mean((2, 3))), y)


class SqueezeExcite(nn.Module):
    """A gate for each channel of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2), nn.Linear(2, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.conv(x)
        gate = torch.sigmoid(self.up(torch.relu(self.down(h.mean((2, 3))))))
        return f.cross_entropy(self.head((h * gate[:, :, None, None]).amax((2, 3))), y)


class Siamese(nn.Module):
    """Two inputs concatenated along the rows through one tower, split again."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        za, zb = self.tower(torch.cat((a, b), 0)).chunk(2)
        d, s = f.pairwise_distance(za, zb), same.to(za.dtype)
        return (s * d.square() + (1 - s) * f.relu(1 - d).square()).mean()


class QuietVae(nn.Module):
    """A variational autoencoder that takes its noise from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_var = self.encode(x).chunk(2, dim=-1)
        made = self.decode(mean + noise * torch.exp(0.5 * log_var))
        kl = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        return (f.mse_loss(made, x, reduction="sum") + kl) / x.size(0)


class MlpMixer(nn.Module):
    """Products over patches, products over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
        self.tokens, self.channels, self.head = nn.Linear(16, 16), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = h + f.gelu(self.tokens(self.norm(h).transpose(1, 2))).transpose(1, 2)
        return f.cross_entropy(self.head((h + f.gelu(self.channels(h))).mean(1)), y)


class Deformable(nn.Module):
    """Offsets for each pixel, sampled by grid_sample."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.conv = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, x.shape[-1]).to(x.dtype)
        base = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        grid = base + 0.1 * self.offset(x).tanh().permute(0, 2, 3, 1)
        return f.l1_loss(self.conv(f.grid_sample(x, grid, align_corners=True, padding_mode="border")), target)


class Radiance(nn.Module):
    """NeRF: Fourier features along a ray, alpha composition by cumprod."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, origin: Tensor, direction: Tensor, colour: Tensor) -> Tensor:
        depth = torch.linspace(0, 1, 6).to(origin.dtype)
        points = origin[:, None] + depth[:, None] * direction[:, None]
        bands = points[..., None] * torch.tensor([1.0, 2.0])
        out = self.net(torch.cat((bands.sin(), bands.cos()), -1).flatten(2))
        alpha = 1 - torch.exp(-f.softplus(out[..., 3]) / 6)
        seen = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1]), 1), 1)
        return f.mse_loss(((alpha * seen)[..., None] * out[..., :3].sigmoid()).sum(1), colour)


class NBeats(nn.Module):
    """Backcasts are taken away, forecasts added up."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12)) for _ in range(3))

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        forecast: Tensor | float = 0.0
        for block in self.blocks:
            back, ahead = block(past).split([8, 4], dim=1)
            past, forecast = past - back, forecast + ahead
        assert isinstance(forecast, Tensor)
        return 200 * ((forecast - future).abs() / (forecast.abs() + future.abs() + 1e-3)).mean()


_IMAGE = "x: normal 8 3 8 8; y: int4 8"
_SPACE = ("height", "width")
ENTRIES = (
    *(entry(build, "x: normal 8 8; y: int4 8", axes=("expert",)) for build in (RoutedExperts, IndexedExperts)),
    entry(HyperNetwork, "x: normal 8 8; task: normal 8 3; y: int4 8"),
    entry(Capsules, "x: normal 8 4 4; y: int3 8"),
    entry(GraphNet, "nodes: normal 8 5 4; edges: bool 8 5 5; y: int3 8"),
    entry(OneGraph, "nodes: normal 8 4; adjacency: unit 8 8; y: int3 8"),
    entry(Recommender, "dense: normal 8 4; user: int50 8; item: int7 8; shop: int20 8; clicked: bool 8"),
    entry(Factorised, "fields: int40 8 5; y: normal 8"),
    *(entry(build, "x: normal 8 3 8 8; target: normal 8 3 8 8", axes=_SPACE) for build in (SmallUnet, Deformable)),
    *(entry(build, _IMAGE, axes=_SPACE) for build in (Inception, SqueezeExcite, MlpMixer)),
    entry(Siamese, "a: normal 8 8; b: normal 8 8; same: bool 8"),
    entry(QuietVae, "x: normal 8 8; noise: normal 8 4"),
    entry(Radiance, "origin: normal 8 3; direction: normal 8 3; colour: unit 8 3"),
    entry(NBeats, "past: normal 8 8; future: normal 8 4"),
)
