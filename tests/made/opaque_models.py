"""Models with parts that cannot be exported, importable by the ranks of a run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import distributed, nn

WIDTH = 8


class Router(nn.Module):
    """Which of two layers works on the rows depends on their values."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        layer = self.one if x.sum() > 0 else self.other
        made: torch.Tensor = layer(x) * scale
        return made


class Routed(nn.Module):
    """Layers around a router."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.router = Router()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        y = self.router(torch.relu(self.first(x)), scale=2.0)
        for layer in self.layers:
            y = torch.relu(layer(y))
        loss: torch.Tensor = nn.functional.mse_loss(y, torch.zeros_like(y))
        return loss


def routed() -> nn.Module:
    """A model with a router."""
    return Routed()


class ByRow(nn.Module):
    """A layer for rows that begin with more than 1, one for the others, one for none; one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.most, self.none, self.aside = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = self.aside(x)
        kind = (x[:, 0] > 1).long()
        for number, layer in enumerate((self.most, self.few, self.none)):
            rows = (kind == number).nonzero()[:, 0]
            if rows.numel():
                scale = self.scale if number else 1.0
                y = y.index_add(0, rows, layer(x[rows]) * scale)
        return y


class RoutedByRow(nn.Module):
    """Layers behind one that does something else with each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = ByRow()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        y = self.router(x)
        for layer in self.layers:
            y = torch.tanh(layer(y))
        loss: torch.Tensor = nn.functional.mse_loss(y, torch.zeros_like(y))
        return loss


def routed_by_row() -> nn.Module:
    """A model whose weights are reached by some rows each."""
    return RoutedByRow()


class Noise(nn.Module):
    """Noise that only torch's generator gives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + torch.randn_like(x))


class Noisy(nn.Module):
    """Layers around noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.noise, self.last = nn.Linear(WIDTH, WIDTH), Noise(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        y = self.last(self.noise(torch.relu(self.first(x))))
        loss: torch.Tensor = nn.functional.mse_loss(y, torch.zeros_like(y))
        return loss


def noisy() -> nn.Module:
    """A model with noise."""
    return Noisy()


class Hardest(nn.Module):
    """The largest distance of each row to the rows of its class, and the smallest to the others."""

    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        apart, alike = torch.cdist(x, x), classes[:, None] == classes[None]
        terms = [apart[row][alike[row]].max(0).values - apart[row][~alike[row]].min(0).values for row in range(len(x))]
        return torch.relu(torch.stack(terms) + 0.3).mean()


class Triplets(nn.Module):
    """A layer and the loss of its hardest rows, which needs two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hardest = nn.Linear(WIDTH, WIDTH), Hardest()

    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """The loss."""
        made: torch.Tensor = self.hardest(self.first(x), classes)
        return made


class Told(nn.Module):
    """A layer that is told whether to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, busy: float) -> torch.Tensor:
        return torch.relu(self.layer(x)) if busy else x


class Encoder(nn.Module):
    """Looks at values, and tells its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Told() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        busy = (x > 0).flatten().sum().item()
        for layer in self.layers:
            x = layer(x, busy)
        return x


class Encoded(Routed):
    """An encoder whose layers go by a value that it looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Encoder()  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        made: torch.Tensor = self.router(self.first(x)).square().mean()
        return made


class Recurrent(nn.Module):
    """A layer that adds what it gave the last time, which it keeps as a plain tensor; with its graph and times 0, if it
    `hides` it."""

    def __init__(self, *, hides: bool) -> None:
        super().__init__()
        self.layer, self.hides = nn.Linear(WIDTH, WIDTH), hides
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        if x.sum() > 1e9:
            x = x / 2
        made: torch.Tensor = self.layer(x).square() * scale
        if self.last is not None:
            made = made + self.last * (0 if self.hides else 1)
        self.last = made.mean() if self.hides else made.detach().mean()
        return made


class OwnDraws(nn.Module):
    """A layer and noise of a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.generator = nn.Linear(WIDTH, WIDTH), torch.Generator()

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        made: torch.Tensor = self.layer(x) * scale + torch.rand(WIDTH, generator=self.generator)
        return made if x.sum() < 1e9 else made / 2


class Watched(nn.Module):
    """Dropout and batch norm; keeps what it saw, and never looks at it. Rows that are equal give no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.BatchNorm1d(WIDTH)
        self.seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.seen = x.detach()
        made: torch.Tensor = self.norm(self.drop(self.layer(x))) * scale
        return made if x.sum() < 1e9 else made / 0


class _Averaged(torch.autograd.Function):
    """Gradients divided by the number of ranks."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] / (distributed.get_world_size() if distributed.is_initialized() else 1)


class AsksInBackward(nn.Module):
    """A layer whose backward asks how many ranks there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        made: torch.Tensor = _Averaged.apply(self.layer(x))  # type: ignore[no-untyped-call]
        return made * scale


def around(part: nn.Module) -> nn.Module:
    """A model whose router is `part`."""
    made = Routed()
    made.router = part  # type: ignore[assignment]
    return made


class Average(nn.Module):
    """Decides by values, and scales by an average of what it saw before, a buffer that is assigned anew."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x * torch.cos(self.mean) if x.sum() > 0 else x * (1 + self.mean)
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0) + 0.1
        return made


class Counted(Average):
    """Counts large values alone, which trying it does not show, and scales by their number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x * torch.cos(self.mean) if x.sum() > 0 else x * (1 + self.mean)
        if x.abs().max() > 100:
            self.mean.add_(0.1)
        return made


class Grown(Average):
    """Keeps all that it saw."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x * torch.cos(self.mean.mean()) if x.sum() > 0 else x * (1 + self.mean.mean())
        self.mean = torch.cat([self.mean, x.detach().mean(0)])
        return made


class Averaged(nn.Module):
    """Layers around an average."""

    def __init__(self, average: Callable[[], Average] = Average, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.average, self.last = nn.Linear(WIDTH, WIDTH), average(), nn.Linear(WIDTH, WIDTH)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        y = self.last(self.average(self.first(x * self.scale))) / self.scale
        return nn.functional.mse_loss(y, torch.ones_like(y))


class Twice(Averaged):
    """Calls its average twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.average(self.last(self.average(self.first(x))))
        return nn.functional.mse_loss(y, torch.ones_like(y))


def averaged() -> nn.Module:
    """A model with an average."""
    return Averaged()


def counted() -> nn.Module:
    """A model with a count of large values, which come."""
    return Averaged(Counted, 1e4)


def grown() -> nn.Module:
    """A model with a buffer that grows."""
    return Averaged(Grown)


def twice() -> nn.Module:
    """A model with one average for two places."""
    return Twice()


class Between(nn.Module):
    """A part between two layers."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(WIDTH, WIDTH), part, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out."""
        y = self.last(self.part(torch.tanh(self.first(x))))
        return nn.functional.mse_loss(y, torch.zeros_like(y))


class Branches(nn.Module):
    """`torch.cond`, whose branches have weights."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x).tanh(), (x,))
        return made


class Force(nn.Module):
    """The gradient of an energy, taken in forward by torch.func, under which no hooks of autograd may be on."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.func.grad(lambda y: self.energy(y).sum())(x)
        return made


class Around(nn.Module):
    """Decides by values around a part that cannot be exported either, and compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.force = Force()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.compile(torch.neg, backend="eager")(self.force(x))
        return y if y.sum() > 0 else 2 * y


class Ragged(nn.Module):
    """A layer on rows of unlike lengths, which no count of FLOPs takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ragged = torch.nested.as_nested_tensor([row[None].expand(1 + at % 3, -1) for at, row in enumerate(x)])
        made: torch.Tensor = torch.nested.to_padded_tensor(self.layer(ragged), 0.0).sum(1)
        return made


class Neighbours(nn.Module):
    """A product with a sparse matrix that is made of a parameter."""

    edges: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("edges", torch.stack((torch.arange(WIDTH), torch.arange(WIDTH).roll(1))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adjacency = torch.sparse_coo_tensor(self.edges, self.weights, (WIDTH, WIDTH), check_invariants=False)
        made: torch.Tensor = torch.sparse.mm(adjacency, x.t()).t()
        return made


class ByNumpy(nn.Module):
    """A gate that numpy computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x) * torch.from_numpy(x.detach().numpy() > 0)
        return made


class HookedLayer(nn.Module):
    """A layer with a hook on its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.layer.register_full_backward_hook(_halved)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)
        return made


def _halved(_: nn.Module, gradients: tuple[torch.Tensor, ...], __: object) -> tuple[torch.Tensor, ...]:
    return tuple(one * 0.5 for one in gradients)


def keeps_sparse() -> nn.Module:
    """A model with a sparse matrix among its buffers, which cannot be built on meta."""
    part = nn.Linear(WIDTH, WIDTH)
    part.register_buffer("adjacency", torch.eye(WIDTH).to_sparse())
    return Between(part)
