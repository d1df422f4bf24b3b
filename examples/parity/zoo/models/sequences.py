"""Family 7: attention with positions of every kind, latents, pointers, a selective scan."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Attending(nn.Module):
    """Attention of four heads of four, with something done to queries, keys or scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(20, 16), nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20)

    def turned(self, q: Tensor) -> Tensor:
        """Queries or keys, (rows, heads, length, width)."""
        return q

    def scored(self, scores: Tensor) -> Tensor:
        """Scores, (rows, heads, length, length)."""
        return scores

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        n, t = tokens.shape
        h = self.embed(tokens)
        q, k, v = self.qkv(h).view(n, t, 3, 4, 4).permute(2, 0, 3, 1, 4)
        scores = self.scored(self.turned(q) @ self.turned(k).transpose(-2, -1) / 2)
        h = h + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, 16))
        return f.cross_entropy(self.head(h).view(-1, 20), labels.view(-1))


class Rotary(Attending):
    """Rotary positions by halves."""

    def turned(self, q: Tensor) -> Tensor:
        angle = torch.arange(q.shape[2])[:, None] * torch.tensor([1.0, 0.1])
        cos, sin = (torch.cat((one, one), -1) for one in (angle.cos(), angle.sin()))
        return q * cos + torch.cat((-q[..., 2:], q[..., :2]), -1) * sin


class Alibi(Attending):
    """Linear biases by head, causal."""

    def scored(self, scores: Tensor) -> Tensor:
        t = torch.arange(scores.shape[-1])
        slope = 2.0 ** -torch.arange(1, 5)
        bias = slope[:, None, None] * (t[None] - t[:, None])
        return (scores + bias).masked_fill(t[None] > t[:, None], float("-inf"))


class RelativeBias(Attending):
    """T5's: a learned number for each distance and head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(15, 4)

    def scored(self, scores: Tensor) -> Tensor:
        t = torch.arange(scores.shape[-1])
        return scores + self.table((t[None] - t[:, None]).clamp(-7, 7) + 7).permute(2, 0, 1)


class SlidingWindow(Attending):
    """Each token sees itself and two before it."""

    def scored(self, scores: Tensor) -> Tensor:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
        return scores.masked_fill(~(ones.tril() & ones.triu(-2)), -1e9)


class Perceiver(nn.Module):
    """Learned latents look at long inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 8))
        self.kv, self.q, self.head = nn.Linear(5, 16), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        q = self.q(self.latents).expand(x.shape[0], -1, -1)
        return f.cross_entropy(self.head(f.scaled_dot_product_attention(q, k, v).mean(1)), y)


class SelectiveScan(nn.Module):
    """Mamba in small: a causal depthwise convolution, a state whose decay depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.conv = nn.Linear(5, 12), nn.Conv1d(6, 6, 3, padding=2, groups=6)
        self.bc, self.dt = nn.Linear(6, 8), nn.Linear(6, 6)
        self.a_log, self.d = nn.Parameter(torch.zeros(6, 4)), nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        u, gate = self.inp(x).chunk(2, -1)
        u = f.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        b, c = self.bc(u).chunk(2, -1)
        dt = f.softplus(self.dt(u))
        decay = torch.exp(-dt[..., None] * self.a_log.exp())
        state, out = u.new_zeros(u.shape[0], 6, 4), []
        for t in range(u.shape[1]):
            state = decay[:, t] * state + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1) + self.d * u[:, t])
        return f.cross_entropy(self.head(torch.stack(out, 1) * f.silu(gate)).transpose(1, 2), y)


class PointerNet(nn.Module):
    """A decoder that points at its inputs, each at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.cell = nn.GRU(3, 8, batch_first=True), nn.GRUCell(8, 8)
        self.w1, self.w2, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        seen, h = self.encode(x)
        state, inp = h[0], seen.mean(1)
        loss = x.new_zeros(())
        for t in range(order.shape[1]):
            state = self.cell(inp, state)
            scores = self.v(torch.tanh(self.w1(seen) + self.w2(state)[:, None])).squeeze(-1)
            loss = loss + f.cross_entropy(scores, order[:, t])
            inp = seen[torch.arange(len(x)), order[:, t]]
        return loss / order.shape[1]


_TOKENS = "tokens: int20 8 6; labels: int20 8 6"
ENTRIES = (
    *(entry(build, _TOKENS, axes=("sequence",)) for build in (Attending, Rotary, Alibi, RelativeBias, SlidingWindow)),
    entry(Perceiver, "x: normal 8 7 5; y: int4 8"),
    entry(SelectiveScan, "x: normal 8 6 5; y: int3 8 6"),
    entry(PointerNet, "x: normal 8 5 3; order: int5 8 3"),
)
