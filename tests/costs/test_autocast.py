"""What autocast is said to do with an op is what torch's dispatcher and its kernels do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from examples.measured.memory.table import MODELS
from examples.parity.cases import Case, plan_of
from placer.cluster.cluster import Backend
from placer.costs.autocast import FLOAT32, LOWERED, NOT_LOWERED
from placer.costs.costs import Costs
from placer.costs.precision import PRODUCT_KINDS, Numerics
from placer.plans.settings import RunSettings
from placer.rules.registry import KINDS
from placer.runtime.stages.captured_model import captured, input_dtypes
from placer.runtime.stages.shapes import shapes_of
from placer.runtime.weights.meta_model import prepared_model
from placer.tracer import capture
from problems import cluster, device

KEYS: dict[Backend, str] = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
# Ops that autocast runs in the widest type of what they read (its documentation), which is what is said of all others.
WIDEST = {
    "cuda": {
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "scatter_add",
        "tensordot",
    },
    "cpu": {"cat", "stack", "index_copy"},
}  # fmt: skip
MIXED = RunSettings(precision="bfloat16-autocast")


def known_to_autocast(backend: Backend) -> set[str]:
    """Ops for which torch's dispatcher has a kernel of autocast's."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name.split("::")[1].split(".")[0] for name in names if has(name, KEYS[backend])}


@pytest.mark.parametrize("backend", KEYS)
def test_every_op_that_autocast_changes_is_on_a_list(backend: Backend) -> None:
    """Of all that placer has a kind for; and no other op is on one."""
    changed = known_to_autocast(backend)
    products = {name for name, kind in KINDS.items() if kind in PRODUCT_KINDS} - NOT_LOWERED
    listed = FLOAT32[backend] | products
    assert changed & KINDS.keys() <= listed | WIDEST[backend] | LOWERED
    parts = {"_softmax", "_log_softmax", "nll_loss_forward"}  # of listed ops, by the names of their kernels
    whole = {"cross_entropy_loss", "square"}  # on CUDA devices made of listed ops
    assert FLOAT32[backend] & KINDS.keys() - parts - whole <= changed
    assert not changed & NOT_LOWERED


def numbers(x: torch.Tensor) -> torch.Tensor:
    """Weights of float32."""
    return x.new_ones(8, dtype=torch.float32)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("backend", KEYS)
@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("layer_norm", lambda x: functional.layer_norm(x, (8,), numbers(x), numbers(x))),
        ("rms_norm", lambda x: functional.rms_norm(x, (8,), numbers(x))),
        ("group_norm", lambda x: functional.group_norm(x, 2, numbers(x), numbers(x))),
        ("softmax", lambda x: x.softmax(-1)),
        ("pow", lambda x: x**2),
        ("square", torch.square),
        ("sum", torch.sum),
        ("l1_loss", lambda x: functional.l1_loss(x, x)),
        ("mse_loss", lambda x: functional.mse_loss(x, x)),
        ("prod", torch.prod),
        ("gelu", functional.gelu),
        ("mul", lambda x: x * x.new_ones((), dtype=torch.float32)),  # a number without dims
        ("prelu", lambda x: functional.prelu(x, numbers(x))),
    ],
)
def test_an_op_of_16_bits_runs_in_the_type_that_is_said(
    name: str, run: Callable[[torch.Tensor], torch.Tensor], backend: Backend
) -> None:
    """On fake tensors of either kind of device: `torch.autocast` itself does nothing for a kind that is not there."""
    was = torch.is_autocast_enabled(backend)
    torch.set_autocast_enabled(backend, True)
    try:
        with FakeTensorMode():
            made = run(torch.empty(4, 8, dtype=torch.bfloat16, device=backend))
    finally:
        torch.set_autocast_enabled(backend, was)
    assert (made.dtype == torch.float32) == (name in FLOAT32[backend])


class Words(nn.Module):
    """Three products of one value, a value of 16 bits that a norm reads, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.wide, self.back, self.last = nn.Linear(32, 96), nn.Linear(96, 32), nn.LayerNorm(32)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        y = self.norm(x)
        heads = (f(y).unflatten(-1, (4, 8)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        gate = torch.sigmoid(y) * y  # read by products first, and kept in float32 here
        x = self.last(self.back(functional.gelu(self.wide(x))) * gate)
        return functional.cross_entropy(functional.linear(x, self.words.weight).flatten(0, 1), words.flatten())


class Images(nn.Module):
    """Convolutions whose values stay in 16 bits from one to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for convolution, norm in zip(self.blocks, self.norms, strict=True):
            x = norm(convolution(x)).relu()
        return x.float().square().mean()


def kept_by_torch(model: nn.Module, batch: torch.Tensor) -> int:
    """Bytes of all that autograd keeps of a forward under autocast, each storage once, but parameters and buffers."""
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers(), batch)}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        loss = model(batch)
    found = sum(one.untyped_storage().nbytes() for where, one in kept.items() if where not in own)
    loss.backward()
    return found


@pytest.mark.in_turns
@pytest.mark.parametrize("make", [Words, Images])
def test_what_is_kept_under_autocast_is_what_autograd_keeps(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    name, batch = ("words", torch.arange(64).view(4, 16)) if make is Words else ("images", torch.randn(4, 3, 12, 12))
    graph = capture(make(), batch={name: batch})
    said = Costs(graph, cluster(device()), MIXED).ranges.of(0, len(graph.blocks)).saved.at(len(batch))
    assert said == pytest.approx(kept_by_torch(make(), batch), rel=0.02)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ["resnet", "unet", "bert", "mixtral"])
def test_values_cross_blocks_in_the_types_that_torch_makes_them_in(name: str) -> None:
    """Images in 16 bits and in 32; words, whose residuals are sums of both, in 32."""
    case = Case(model=f"examples.measured.memory.models:{name}", precision="bfloat16-autocast", shapes=MODELS[name])
    plan, cpu = plan_of(case), torch.device("cpu")
    model = prepared_model(plan, None, cpu)
    cut = captured(plan, model).cut(plan, model)
    made = shapes_of(cut.module, plan.graph, input_dtypes(plan), rows=4, autocast=True)
    types = Numerics.of(plan.graph, plan.settings, "cpu").crossing
    values = (node for nodes in cut.outputs_of.values() for node in nodes)
    real = {cut.name(node): str(made[node].dtype) for node in values if cut.name(node).startswith("b")}
    assert real == {value: f"torch.{types[value]}" for value in real}
    assert ("torch.bfloat16" in real.values()) == (name in ("resnet", "unet"))
