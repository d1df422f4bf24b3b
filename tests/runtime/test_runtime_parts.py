"""The mechanisms of the runtime one by one, on one process."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias, cast

import pytest
import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.nn import functional

from placer.plans.settings import RunSettings
from placer.runtime.data_parallel.optimizer import CLIP_EPSILON, Updater, clip_scale, optimizer_factory
from placer.runtime.dry.fake_world import fake_world
from placer.runtime.spmd.collectives import with_gradient
from placer.runtime.stages.dropout import attention, dropout
from placer.runtime.stages.keyed_numbers import row_keys
from placer.runtime.stages.losses import counted, cross_entropy, times_share
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.recompute import Rerun, runs_again, runs_once, runs_once_together, runs_together
from placer.runtime.stages.split_backward import backward_inputs

ROWS = 6
Called: TypeAlias = Callable[..., object]


def _mode(
    first: int, rows: int, *, step: int = 0, training: bool = True, counts: tuple[float, ...] = ()
) -> PassContext:
    keys = row_keys(7, step, first, rows)
    return PassContext(rows=rows, global_rows=ROWS, training=training, counts=counts, keys=keys)


def test_dropout_of_the_whole_batch_is_that_of_its_pieces() -> None:
    x = torch.ones(ROWS, 5, 11, dtype=torch.float64)
    whole = dropout(x, 0.3, 2, 0, _mode(0, ROWS))
    pieces = [dropout(x[a:b], 0.3, 2, 0, _mode(a, b - a)) for a, b in ((0, 1), (1, 4), (4, 6))]
    assert torch.equal(whole, torch.cat(pieces))


def test_dropout_keeps_its_mask_where_rows_lie_in_another_dim() -> None:
    x = torch.ones(3, ROWS, 5)
    whole = dropout(x, 0.3, 2, 1, _mode(0, ROWS))
    pieces = [dropout(x[:, a:b], 0.3, 2, 1, _mode(a, b - a)) for a, b in ((0, 1), (1, 4), (4, 6))]
    assert torch.equal(torch.cat(pieces, 1), whole)
    assert torch.equal(dropout(x.transpose(0, 1), 0.3, 2, 0, _mode(0, ROWS)).transpose(0, 1), whole)


def test_flattened_rows_drop_like_rows() -> None:
    x = torch.ones(ROWS, 5, 11)
    mode = _mode(0, ROWS)
    assert torch.equal(dropout(x, 0.3, 0, 0, mode).flatten(0, 1), dropout(x.flatten(0, 1), 0.3, 0, 0, mode))


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    x = torch.ones(64, 4096)
    found = dropout(x, 0.25, 0, 0, PassContext(rows=64, global_rows=64, training=True, keys=row_keys(0, 0, 0, 64)))
    kept = (found != 0).double().mean().item()
    deviation = (0.25 * 0.75 / x.numel()) ** 0.5
    assert abs(kept - 0.75) < 5 * deviation
    assert found.max().item() == pytest.approx(1 / 0.75)


@pytest.mark.parametrize("other", ["op", "step", "row"])
def test_masks_differ_between_ops_steps_and_rows(other: str) -> None:
    x = torch.ones(1, 4096)
    base = dropout(x, 0.5, 0, 0, _mode(0, 1))
    changed = dropout(x, 0.5, int(other == "op"), 0, _mode(int(other == "row"), 1, step=int(other == "step")))
    assert 0.4 < (base != changed).double().mean().item() < 0.6


def test_evaluation_drops_nothing() -> None:
    x = torch.ones(ROWS, 9)
    assert dropout(x, 0.9, 0, 0, _mode(0, ROWS, training=False)) is x


def test_attention_with_almost_no_dropout_is_torchs() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(ROWS, heads, 5, 4, dtype=torch.float64) for heads in (4, 2, 2))
    ours = attention(q, k, v, None, 1e-15, True, None, True, 0, True, _mode(0, ROWS))
    theirs = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (ours - theirs).abs().max().item() < 1e-12


def test_shares_of_a_cross_entropy_add_up_to_torchs_mean() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(ROWS, 5, dtype=torch.float64), torch.tensor([0, 1, -100, 3, -100, -100])
    count = counted(labels, -100)
    parts = [
        cross_entropy(scores[a:b], labels[a:b], None, -100, 0.1, 0, _mode(a, b - a, counts=(count,)))
        for a, b in ((0, 1), (1, 4), (4, 6))
    ]
    whole = functional.cross_entropy(scores, labels, label_smoothing=0.1)
    assert count == 3.0
    assert abs(sum(parts).item() - whole.item()) < 1e-15  # type: ignore[union-attr]


def test_rows_without_counted_labels_give_exactly_zero() -> None:
    scores = torch.randn(2, 5, requires_grad=True)
    loss = cross_entropy(scores, torch.tensor([-100, -100]), None, -100, 0.0, 0, _mode(0, 2, counts=(3.0,)))
    torch.autograd.backward(loss)
    assert loss.item() == 0.0
    assert scores.grad is not None and not scores.grad.any()


def test_shares_of_a_mean_add_up_to_it() -> None:
    x = torch.randn(ROWS, 3, 2, dtype=torch.float64)
    parts = [times_share(x[a:b].mean(), mode=_mode(a, b - a)).item() for a, b in ((0, 4), (4, 6))]
    assert abs(sum(parts) - x.mean().item()) < 1e-15


class _Odd(nn.Module):
    """Tied weights, an output that is a view, one that depends on weights only, one that is the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.a(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return y.transpose(0, 1), self.bias * 2.0, x + self.bias


@pytest.mark.parametrize(("recompute", "runs"), [(False, 1), (True, 2)])
def test_backward_in_two_parts_is_the_whole_backward(recompute: bool, runs: int) -> None:
    torch.manual_seed(0)
    module = _Odd().double()
    calls = []

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(x)
        return cast(tuple[torch.Tensor, ...], module(x))

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    given = [torch.randn_like(output) for output in module(x)]
    torch.autograd.backward(module(x), given)
    assert x.grad is not None
    wanted = {name: p.grad for name, p in module.named_parameters()}
    at_input, x.grad = x.grad, None
    module.zero_grad(set_to_none=True)

    outputs = runs_once(run, x) if recompute else run(x)
    deferred = backward_inputs(outputs, given, [x], module.parameters())
    assert x.grad is not None
    assert (x.grad - at_input).abs().max().item() < 1e-12
    assert all(p.grad is None for p in module.parameters())
    deferred.run()
    for name, parameter in module.named_parameters():
        expected = wanted[name]
        assert parameter.grad is not None and expected is not None
        assert (parameter.grad - expected).abs().max().item() < 1e-12
    assert len(calls) == runs


class NormsAnImage(nn.Module):
    """A group norm behind attention over an image's places, as U-Nets have it: what it gets is channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Conv2d(8, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.one(x).transpose(1, 2).unflatten(2, (4, 4))
        assert image.is_contiguous(memory_format=torch.channels_last)
        made: torch.Tensor = self.two(self.norm(image))
        return made


def test_the_second_part_of_a_backward_passes_a_group_norm_of_an_image() -> None:
    torch.manual_seed(0)
    module, x = NormsAnImage().double(), torch.randn(2, 16, 8, dtype=torch.float64, requires_grad=True)
    given = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    wanted = torch.autograd.grad(module(x), tuple(module.parameters()), given)
    backward_inputs([module(x)], [given], [x], module.parameters()).run()
    for parameter, expected in zip(module.parameters(), wanted, strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, expected, rtol=0, atol=1e-12)


def test_torch_still_needs_the_input_of_a_group_norm() -> None:
    """Where it does not end the process any more, `_ASKED_WHOLE` of `split_backward` can go."""
    code = (
        "import torch; norm = torch.nn.GroupNorm(2, 8); x = torch.ones(2, 8, 4, 4, requires_grad=True); "
        "made = norm(x.contiguous(memory_format=torch.channels_last)); "
        "torch.autograd.grad(made.sum(), tuple(norm.parameters()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
    assert ended == -signal.SIGSEGV


def test_a_block_that_saves_other_tensors_when_it_runs_again_is_an_error() -> None:
    runs = iter((torch.sin, torch.neg))
    x = torch.zeros(3, requires_grad=True)
    (made,) = runs_once(lambda x: (next(runs)(x * 1.0) * x,), x)
    with pytest.raises(RuntimeError, match=r"ran again saved \d+ tensors where it saved \d+"):
        torch.autograd.grad(made.sum(), x)


def _moved_by_a_gradient(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    (gradient,) = torch.autograd.grad(x.tanh().pow(2).sum(), x, create_graph=True)
    return (x.sin() * gradient.exp(),)


@pytest.mark.parametrize("rerun", [runs_once, runs_again, runs_once_together])
def test_a_block_that_takes_derivatives_in_forward_runs_again(rerun: Rerun) -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(_moved_by_a_gradient(x)[0].sum(), x)
    (found,) = torch.autograd.grad(rerun(_moved_by_a_gradient, x)[0].sum(), x)
    assert (found - wanted).abs().max().item() < 1e-12


class _Told(torch.autograd.Function):
    """x as it is; saves nothing, and tells when its backward is called."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, told: list[str]) -> torch.Tensor:
        ctx.told = told  # type: ignore[attr-defined]
        told.append("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.told.append("backward")  # type: ignore[attr-defined]
        return gradient, None


@pytest.mark.parametrize(
    ("rerun", "order"),
    [
        (runs_together, ["forward", "forward", "backward"]),
        (runs_once_together, ["forward", "forward", "backward"]),
        (runs_again, ["forward", "backward"]),
    ],
)
def test_devices_that_share_a_block_run_all_of_it_again_before_anything_of_its_backward(
    rerun: Rerun, order: list[str]
) -> None:
    told: list[str] = []
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    (made,) = rerun(lambda x: (_Told.apply(x * x, told),), x)  # type: ignore[no-untyped-call]
    (gradient,) = torch.autograd.grad(made.sum(), x)
    assert gradient.tolist() == [4.0, 6.0]
    assert told == order


def test_clipping_is_torchs() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([3.0, 4.0, 12.0])
    norm = float(nn.utils.clip_grad_norm_([parameter], 2.0))
    assert clip_scale(norm, 2.0) == pytest.approx(2.0 / (13.0 + CLIP_EPSILON))
    assert float(parameter.grad.norm()) == pytest.approx(2.0 / (13.0 + CLIP_EPSILON) * 13.0)
    assert clip_scale(1.0, 2.0) == clip_scale(1e9, None) == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_factor_that_lies_with_the_gradients_clips_as_a_number_does(dtype: torch.dtype) -> None:
    """As of a GPU, whose host does not wait for the norm; gradients of 16 bits are scaled in their masters' type."""
    ends = []
    for norm in (13.0, torch.tensor(13.0, dtype=torch.float64)):
        weight = nn.Parameter(torch.arange(4.0, dtype=dtype))
        weight.grad = torch.tensor([3.0, 4.0, 12.0, 1e-3]).to(dtype)
        updater = Updater({"weight": weight}, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
        updater.step(clip_scale(norm, 2.0))
        ends.append(next(iter(updater.updated.values())).detach().double())
    expected = torch.arange(4.0).double() - 0.5 * torch.tensor([3.0, 4.0, 12.0, 1e-3]).to(dtype).double() * 2 / 13
    assert torch.allclose(ends[0], ends[1], rtol=1e-6 if dtype != torch.float64 else 1e-12)
    assert torch.allclose(ends[0], expected, rtol=1e-6)
    assert float(clip_scale(torch.tensor(1.0), 2.0)) == 1.0
    assert math.isnan(float(clip_scale(torch.tensor(math.nan), 2.0)))


def test_weights_of_16_bits_are_updated_through_their_masters() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    updater = Updater({"weight": weight}, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    for _ in range(4):
        weight.grad = torch.full_like(weight, 2**-10)
        updater.step(1.0)
    # One step is less than half a unit of the last place of the weight, four steps are one.
    assert updater.masters["weight"].item() == 1 - 4 * 2**-10
    assert weight.item() == 1 - 2**-8


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_gradient_that_lies_otherwise_in_memory_updates_alike(optimizer: str) -> None:
    settings = RunSettings(optimizer="adamw" if optimizer == "adamw" else "sgd")
    start, gradient = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    made = []
    for fused, lying in ((False, gradient), (True, gradient), (True, gradient.transpose(1, 2).clone().transpose(1, 2))):
        weight = nn.Parameter(start.clone())
        updater = Updater({"weight": weight}, optimizer_factory(settings, fused=fused))
        weight.grad = lying
        updater.step(1.0)
        made.append(weight.detach())
    assert torch.allclose(made[0], made[1], atol=1e-7) and torch.equal(made[1], made[2])


def test_what_a_collective_gives_may_be_written_into_even_where_it_gives_what_it_got() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    made = with_gradient(x * 2.0, lambda value: value, lambda gradient: 5.0 * gradient)
    made.index_put_((torch.tensor([1]),), torch.tensor(7.0, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(made.sum(), x)
    assert made.tolist() == [2.0, 7.0, 2.0]
    assert gradient.tolist() == [10.0, 0.0, 10.0]


def test_fsdp_waits_for_every_collective_before_it_computes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks torch.distributed for ones that have ended when the call returns: what CPUs, without streams, then do."""
    asked: list[tuple[str, bool]] = []
    for name in ("DefaultAllGather", "DefaultReduceScatter"):
        plain = getattr(_fsdp_collectives, name).__call__

        def call(own: object, *given: object, _plain: Called = plain, _name: str = name, **named: object) -> object:
            asked.append((_name, bool(named.get("async_op", False))))
            return _plain(own, *given, **named)

        monkeypatch.setattr(getattr(_fsdp_collectives, name), "__call__", call)
    with fake_world(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        root = fully_shard(layers, mesh=mesh)
        root.set_force_sum_reduction_for_comms(True)
        layers(torch.ones(2, 8)).sum().backward()
    assert {name for name, _ in asked} == {"DefaultAllGather", "DefaultReduceScatter"} and len(asked) >= 4 * 3
    assert not any(behind for _, behind in asked)
