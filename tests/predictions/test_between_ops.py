"""What a step takes beside its ops: kernels of autograd between them, and waiting for the host; torch's own engine, and
kernels issued one by one, are what they are held to."""

from __future__ import annotations

import random
from collections import Counter
from typing import TypeVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from placer import plan
from placer.cluster.catalogue import load_cluster
from placer.costs.compute.gradient_kernels import additions, column_seconds, gradient_seconds, later_reads, undone
from placer.costs.compute.host_issue import HostSeconds
from placer.costs.compute.roofline import BlockPasses, BlockSeconds, host_seconds, op_seconds
from placer.costs.costs import Costs
from placer.costs.precision import Numerics
from placer.costs.timing.host_lead import idle_seconds
from placer.graph import Graph
from placer.plans.settings import RunSettings

H200 = load_cluster("h200x1")
ROWS, WIDTH = 4, 8


class Gated(nn.Module):
    """A value read by three products, halves laid apart, a residual, a factor that is a weight, a slice."""

    def __init__(self, halves: str) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.three = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(3))
        self.scale, self.out, self.halves = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, 3), halves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the last layer's results."""
        h = self.first(x)
        a, b, c = (each(h) for each in self.three)
        mixed = a.sigmoid() * b + c
        if self.halves == "chunk":
            gate, up = mixed.chunk(2, -1)
        else:
            gate, up = mixed[..., :WIDTH], mixed[..., WIDTH:]
        out: torch.Tensor = self.out(h + gate.tanh() * up * self.scale).square().mean()
        return out


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls of ops, and the bytes of what additions make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.added = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removesuffix("_")
        self.calls[name] += 1
        self.added += made.numel() * made.element_size() if name == "add" else 0
        return made


def backward_of(model: nn.Module, x: torch.Tensor) -> Counting:
    """What torch's engine calls in a backward."""
    loss = model(x)
    counting = Counting()
    with counting:
        loss.backward()
    return counting


def graph_of(model: nn.Module, *shape: int) -> Graph:
    """The captured model of so many rows."""
    graph = plan(model, H200, batch=(torch.randn(*shape),)).graph
    assert graph is not None
    return graph


@pytest.mark.in_turns
@pytest.mark.parametrize("halves", ["chunk", "slice"])
def test_kernels_between_ops_are_those_that_autograd_calls(halves: str) -> None:
    model, x = Gated(halves), torch.randn(ROWS, WIDTH)
    counted, graph = backward_of(model, x), graph_of(model, ROWS, WIDTH)
    numerics = Numerics.of(graph, RunSettings())
    later, kinds = later_reads(graph), [graph.classes[block.kind] for block in graph.blocks]
    each = [(graph.classes[block.kind], later[block.kind]) for block in graph.blocks]
    sums = [one for kind, again in each for one in additions(kind, numerics, ROWS, again)]
    assert sum(one.kernels for one in sums) == counted.calls["add"] == 3 + (halves == "slice")
    assert sum(one.size for one in sums) == 3 * counted.added
    others = [one for kind in kinds for one in undone(kind, numerics, ROWS)]
    # The factor's gradient: a product, and its sum over rows; the bias of the last layers is summed by their backward.
    assert [one.summed for one in others if one.summed] == [ROWS * WIDTH]
    assert counted.calls["slice_backward"] == (2 if halves == "slice" else 0)
    apart = sum(one.kernels for one in others) - 2
    assert apart == (2 * counted.calls["slice_backward"] if halves == "slice" else counted.calls["cat"])


def test_they_cost_nothing_where_chains_are_compiled_and_more_where_a_gpu_was_measured() -> None:
    graph, device = graph_of(Gated("chunk"), ROWS, WIDTH), H200.devices[0]
    plain, fused = RunSettings(), RunSettings(fusion=True)
    numerics, later = Numerics.of(graph, plain), later_reads(graph)

    def took(settings: RunSettings) -> float:
        each = [(graph.classes[block.kind], later[block.kind]) for block in graph.blocks]
        return sum(gradient_seconds(kind, numerics, device, settings, ROWS, again) for kind, again in each)

    assert took(fused) == 0.0
    assert 5 * device.launch_seconds < took(plain) < 10 * device.launch_seconds
    assert column_seconds(1e6, load_cluster("localx1").devices[0], plain) == 0.0
    assert column_seconds(1e6, device, plain) == pytest.approx(2e-6)


def issued_one_by_one(passes: list[tuple[float, float]], kernels: int = 400) -> float:
    """When a device is done with passes of (busy seconds, seconds to issue), each of so many kernels."""
    host = done = 0.0
    for busy, issue in passes:
        for _ in range(kernels):
            host += issue / kernels
            done = max(done, host) + busy / kernels
    return done


@pytest.mark.parametrize("seed", range(20))
def test_a_host_that_runs_ahead_is_waited_for_as_kernel_by_kernel(seed: int) -> None:
    drawn = random.Random(seed)
    kinds = [drawn.randrange(4) for _ in range(12)]
    passes = {
        kind: BlockPasses(
            busy=BlockSeconds(forward=drawn.random(), backward=drawn.choice((0.0, 2.0)) * drawn.random()),
            host=HostSeconds(drawn.random(), drawn.random()), again=0.0, unread=0.0, spared=0.0,
        )
        for kind in set(kinds)
    }  # fmt: skip
    ahead = [(passes[kind].busy.forward, passes[kind].host.forward) for kind in kinds]
    back = [(passes[kind].busy.backward, passes[kind].host.backward) for kind in kinds[::-1]]
    idle = idle_seconds(kinds, passes)
    blocks = [passes[kind].waiting(idle.get(kind, passes[kind].idle)) for kind in kinds]
    told = sum(block.forward + block.backward for block in blocks)
    assert told == pytest.approx(issued_one_by_one(ahead + [one for one in back if one[0]]), rel=0.01)
    alone = [passes[kind].waiting(passes[kind].idle) for kind in kinds]
    assert told <= sum(block.forward + block.backward for block in alone) + 1e-9


class Uneven(nn.Module):
    """Layers that keep a device busy, and as many that its host issues for longer than they take."""

    def __init__(self) -> None:
        super().__init__()
        wide = [nn.Sequential(nn.Linear(512, 8192), nn.Linear(8192, 512)) for _ in range(3)]
        small = [nn.Sequential(*(nn.Linear(512, 512) for _ in range(12))) for _ in range(3)]
        self.layers = nn.ModuleList([*wide, *small])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the last layer's results."""
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.mark.in_turns
def test_a_stage_among_others_is_never_faster_than_its_host_and_the_whole_model_is_where_it_runs_ahead() -> None:
    made = plan(Uneven(), load_cluster("h200x2"), batch=(torch.randn(4096, 512),))
    assert made.graph is not None
    costs = Costs(made.graph, load_cluster("h200x2"), RunSettings(precision="bfloat16"))
    blocks, host = len(made.graph.blocks), load_cluster("h200x2").devices[0]
    seconds = [costs.stage_times.stage(at, at + 1, device=0, rows=4096) for at in range(blocks)]
    whole = costs.stage_times.stage(0, blocks, device=0, rows=4096)
    for number, own in enumerate(seconds):
        kind = made.graph.block_class(number)
        issued = host_seconds(kind, host, RunSettings(precision="bfloat16"))
        assert own.forward >= issued.forward * (1 - 1e-9)
    assert whole.forward + whole.backward < 0.98 * sum(own.forward + own.backward for own in seconds)


class Images(nn.Module):
    """Convolutions: of pictures, of a channel each behind a norm over channels that are last, and of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.LayerNorm(16)
        self.depthwise, self.mix = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the last results."""
        h = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out: torch.Tensor = self.mix(self.depthwise(h)).square().mean()
        return out


Model = TypeVar("Model", bound=nn.Module)


def channels_last(model: Model) -> Model:
    """The model with its weights laid out so."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@pytest.mark.in_turns
@pytest.mark.parametrize("last", [False, True])
def test_a_convolution_is_known_to_have_its_channels_last_where_torch_lays_them_so(last: bool) -> None:
    model = channels_last(Images()) if last else Images()
    met: list[bool] = []
    for module in (model.stem, model.depthwise, model.mix):
        module.register_forward_hook(
            lambda _, __, made: met.append(made.is_contiguous(memory_format=torch.channels_last))
        )
    model(torch.randn(2, 3, 8, 8))
    graph = graph_of(channels_last(Images()) if last else Images(), 2, 3, 8, 8)
    convolutions = [op for _, op in graph.ops if op.kind == "convolution"]
    assert [op.channels_last for op in convolutions] == met == [last, True, True]


class Volumes(nn.Module):
    """Volumes of which torch's kernels for a CPU make contiguous ones, and a picture without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.volume = nn.Conv3d(2, 2, 3, padding=1)
        self.picture, self.over = nn.Parameter(torch.randn(2, 4, 4)), channels_last(nn.Conv2d(2, 2, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of both."""
        flat = self.volume(x.permute(0, 4, 1, 2, 3)).view(len(x), -1)
        over: torch.Tensor = self.over(self.picture)
        out: torch.Tensor = flat.square().mean() + over.square().mean()
        return out


def test_volumes_and_pictures_without_rows_are_captured_as_they_run() -> None:
    model, x = Volumes().double(), torch.randn(2, 4, 4, 4, 2, dtype=torch.float64)
    model(x).backward()
    graph = plan(model, H200, batch=(x,)).graph
    assert graph is not None
    assert [op.kind for _, op in graph.ops].count("convolution") == 2


class Two(nn.Module):
    """Convolutions behind each other."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the last results."""
        out: torch.Tensor = self.both(x).square().mean()
        return out


def test_convolutions_with_channels_last_are_not_laid_out_anew() -> None:
    settings, device = RunSettings(precision="bfloat16"), H200.devices[0]
    took = []
    for model in (Two(), channels_last(Two())):
        graph = graph_of(model, 8, 64, 56, 56)
        found = [
            (kind, at) for kind in graph.classes for at, op in enumerate(kind.ops) if len(op.backward_products) == 2
        ]
        (kind, at), numerics = found[0], Numerics.of(graph, settings)
        took.append(op_seconds(kind.ops[at], numerics.ops(kind)[at], device, settings, 256))
    assert took[1].forward < took[0].forward
    assert took[1].backward < took[0].backward


@pytest.mark.in_turns
def test_the_search_of_a_gpu_that_waits_for_its_host_finds_what_all_plans_have() -> None:
    """A whole model is priced with a host that runs ahead, a stage without: no bound may take the one for the other."""
    batch = (torch.randn(8, 512),)
    best = plan(Uneven(), load_cluster("h200x2"), batch=batch, strategy="exhaustive")
    found = plan(Uneven(), load_cluster("h200x2"), batch=batch)
    assert found.ledger is not None and best.ledger is not None and found.bound is not None
    assert found.ledger.step_seconds == pytest.approx(best.ledger.step_seconds, rel=1e-9)
    assert found.bound <= best.ledger.step_seconds * (1 + 1e-9)
