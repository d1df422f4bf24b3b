"""Small models of the tests of execution, written by hand: of language, with a tied embedding and a skip over all its
blocks; of rows that are laid out in ways of their own; that read the values of inputs which every step has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from placer.tracer.inputs.constants import Constant

VOCABULARY = 256
WIDTH = 16
LENGTH = 8
ROW_WIDTH = 8
GRID_ROWS, GRID_WIDTH = 8, 16
GRID = [1, 4, 4]
PACKED_LENGTHS = [2, 1, 2, 1, 2, 2, 1, 1]


@dataclass
class Output:
    """As Hugging Face models return it."""

    loss: torch.Tensor


class Mixer(nn.Module):
    """Each position is mixed with the mean of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_bsw: torch.Tensor) -> torch.Tensor:
        counts_s1 = torch.arange(1, x_bsw.shape[1] + 1, device=x_bsw.device, dtype=x_bsw.dtype).unsqueeze(-1)
        mean_bsw = self.norm(x_bsw).cumsum(1) / counts_s1
        mixed_bsw: torch.Tensor = self.down(functional.gelu(self.up(mean_bsw)))
        return x_bsw + mixed_bsw


class TinyModel(nn.Module):
    """Embedding, four mixers, a head that is the embedding again and reads the embedding's output too."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Mixer() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Output:
        first = x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x + first))
        return Output(functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


class Rootless(TinyModel):
    """Its loss is a number, its gradient none: of a root at zero, where a bias begins."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Output:
        loss = super().forward(input_ids, labels).loss
        return Output(loss + torch.sqrt(self.norm.bias.square().sum()))


class Shifted(nn.Module):
    """Images of which the upper rows are cut away between two convolutions, and zeros come behind the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        lower = functional.gelu(self.first(image))[:, :, 2:]
        moved = functional.pad(lower, (0, 0, -1, 1))
        return functional.cross_entropy(self.second(moved).mean((2, 3)), labels)


def shifted() -> nn.Module:
    """Whose rows move to other ranks where height is cut."""
    return Shifted()


def tied() -> nn.Module:
    """The model with its head tied to its embedding."""
    return TinyModel()


def untied() -> nn.Module:
    """The model with a head of its own."""
    return TinyModel(tied=False)


def rootless() -> nn.Module:
    """The model whose first step spoils its weights."""
    return Rootless()


# Gradients that are easily spoiled.
SIDE = 16
DELICATE = (("x", (8, SIDE)), ("y", (8, 1)))


class RootedLayer(nn.Module):
    """Of a value made up, which may be negative, the root has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.ones(SIDE)), nn.Linear(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(self.linear(torch.sqrt(x * self.scale)))


class AddedLayer(nn.Module):
    """Autograd gives both weights one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.delta = (nn.Parameter(torch.randn(SIDE, SIDE) * by) for by in (0.3, 0.0))
        self.norm = nn.LayerNorm(SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.norm(x) @ (self.weight + self.delta))


class DelicateStack(nn.Module):
    """Four layers and a loss that is large enough to be clipped."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(layer() for _ in range(4)), nn.Linear(SIDE, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.abs() + 0.1
        for layer in self.layers:
            x = layer(x)
        loss: torch.Tensor = 50 * (self.head(x) - y).square().mean()
        return loss


def rooted() -> nn.Module:
    """With roots of values that are positive."""
    return DelicateStack(RootedLayer)


def added() -> nn.Module:
    """With weights added before they are used."""
    return DelicateStack(AddedLayer)


class Gated(DelicateStack):
    """A gate for each layer, of one parameter that is taken apart before the first: views that later blocks read."""

    def __init__(self) -> None:
        super().__init__(AddedLayer)
        self.gates = nn.Parameter(torch.randn(4, SIDE))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer, gate in zip(self.layers, self.gates, strict=False):
            x = layer(x) * gate
        loss: torch.Tensor = (self.head(x) - y).square().mean()
        return loss


class CentredWords(nn.Module):
    """Classes at four positions, which numbers stand for, where rows meet: its loss is not divided."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 12)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        scores = self.last(h - 0.5 * h.mean(0, keepdim=True)).transpose(1, 2)
        return nn.functional.cross_entropy(scores, (4 * y).long().remainder(12), label_smoothing=0.1, ignore_index=3)


class Filling(nn.Module):
    """Of each row two of four tokens, which its values choose, are replaced by features of it, as models of images and
    text do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.see = (nn.Linear(ROW_WIDTH, times * ROW_WIDTH) for times in (4, 2))
        self.mix = nn.Linear(ROW_WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x).unflatten(1, (4, ROW_WIDTH))
        chosen = torch.zeros_like(x[:, :4]).scatter(1, x[:, :4].topk(2).indices, 1.0)
        mask = (chosen > 0).unsqueeze(-1).expand_as(tokens)
        filled = tokens.masked_scatter(mask, self.see(x.tanh()).view(-1, ROW_WIDTH))
        return self.mix(filled.cumsum(1).tanh()).pow(2).mean()  # type: ignore[no-any-return]


def filling() -> nn.Module:
    """Filling."""
    return Filling()


class Preferring(nn.Module):
    """What is chosen and what is rejected go through the layers as one batch, as in direct preference optimisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(ROW_WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        scores = self.layers(torch.cat([chosen, rejected])).squeeze(1)
        better, worse = scores[: len(chosen)], scores[len(chosen) :]
        return -functional.logsigmoid(better - worse).mean()


def preferring() -> nn.Module:
    """Preferring."""
    return Preferring()


class TwoWays(nn.Module):
    """Layers with two outputs, of the second of which the last layer's leads nowhere."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({way: nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width)) for way in "ab"})
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x, x * 0.5
        for layer in self.layers:
            a, b = a + layer["a"](a) + b, b + functional.dropout(layer["b"](b), 0.1)  # type: ignore[index]
        return functional.mse_loss(self.head(a), y)


class GridLayers(nn.Module):
    """GridLayers that its heirs put something between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(GRID_WIDTH, GRID_WIDTH) for _ in range(4))

    def computed(self, x: Tensor) -> Tensor:
        """What all layers make of x."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class OneGrid(GridLayers):
    """Divides every row as one grid says."""

    def forward(self, x: Tensor, y: Tensor, grid: Tensor) -> Tensor:
        times, height, width = grid.tolist()
        found = self.computed(x).view(-1, times, height, width)
        found = found[:, :, : grid[1] - 1] * (height / int(grid.sum()))
        loss: Tensor = nn.functional.mse_loss(found.mean((1, 2)), y[:, :4])
        return loss


class RowGrids(GridLayers):
    """Divides each row as its own grid says."""

    def forward(self, x: Tensor, y: Tensor, grid: Tensor) -> Tensor:
        pairs = zip(self.computed(x), grid, strict=True)
        found = torch.stack([row.view(*sizes.tolist()).mean((0, 1)) for row, sizes in pairs])
        loss: Tensor = nn.functional.mse_loss(found, y[:, :4])
        return loss


class Packed(GridLayers):
    """Repeats each row as often as its length says, and takes the pieces that are longer than one."""

    def forward(self, x: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        found, ends = self.computed(x).repeat_interleave(lengths, 0), lengths.cumsum(0)
        starts = torch.zeros_like(ends)
        starts[1:] = ends[:-1]
        pieces = [found[start:end].mean(0) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        long = lengths > 1
        loss: Tensor = nn.functional.mse_loss(torch.stack(pieces)[long], y[long])
        return loss


def one_grid() -> nn.Module:
    """A grid for all rows."""
    return OneGrid()


def row_grids() -> nn.Module:
    """A grid for each row."""
    return RowGrids()


def packed() -> nn.Module:
    """Rows of unlike lengths."""
    return Packed()


MODELS: dict[str, Callable[[], nn.Module]] = {"one_grid": one_grid, "row_grids": row_grids, "packed": packed}
#: By factory the name of the constant and its values.
CONSTANTS: dict[str, tuple[str, object]] = {
    "one_grid": ("grid", GRID), "row_grids": ("grid", [GRID] * GRID_ROWS), "packed": ("lengths", PACKED_LENGTHS),
}  # fmt: skip


def described(made: str) -> dict[str, object]:
    """The batch of a model, as it is described."""
    name, values = CONSTANTS[made]
    return {"x": (GRID_ROWS, GRID_WIDTH), "y": (GRID_ROWS, GRID_WIDTH), name: Constant(values)}


def batch_of(made: str, seed: int) -> dict[str, Tensor]:
    """A batch for a model."""
    name, values = CONSTANTS[made]
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(GRID_ROWS, GRID_WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    return {"x": x, "y": y, name: torch.tensor(values)}


class NormedThrice(nn.Module):
    """One norm of three values, as siamese models have it; its running statistics are written by each."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = nn.Conv1d(WIDTH, WIDTH, 1), norm

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one = self.norm(self.inner(x))
        other = self.norm(self.inner(y))
        both = self.norm(one * other)
        loss: Tensor = functional.mse_loss(both, one) + functional.mse_loss(other, y)
        return loss


def batch_normed_thrice() -> nn.Module:
    return NormedThrice(nn.BatchNorm1d(WIDTH))


def instance_normed_thrice() -> nn.Module:
    return NormedThrice(nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True))
