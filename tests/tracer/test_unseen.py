"""What an export does not see of backward is refused with its line, or left to the submodule that does it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from placer import tracer
from placer.errors import CaptureError
from placer.graph import Graph

pytestmark = pytest.mark.in_turns

SHAPES = {"x": (8, 6)}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = itertools.count()  # a part that counts in a plain number is refused

    def forward(self, x: Tensor) -> Tensor:
        next(self.calls)
        made: Tensor = Doubled.apply(x)  # type: ignore[no-untyped-call]  # torch does not type it
        return made


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.two(self.between(self.one(x)))
        return made.pow(2).mean()


class Applies(Small):
    def between(self, h: Tensor) -> Tensor:
        made: Tensor = Doubled.apply(h)  # type: ignore[no-untyped-call]  # torch does not type it
        return made


class HoldsPart(Small):
    def __init__(self) -> None:
        super().__init__()
        self.part = Doubling()

    def between(self, h: Tensor) -> Tensor:
        made: Tensor = self.part(h)
        return made


class HooksTensor(Small):
    def between(self, h: Tensor) -> Tensor:
        h.register_hook(lambda gradient: 3 * gradient)  # type: ignore[no-untyped-call]  # torch does not type it
        return h


class Differentiates(Small):
    def between(self, h: Tensor) -> Tensor:
        return h - torch.autograd.grad(h.pow(2).sum(), h, create_graph=True)[0]


def energy(h: Tensor) -> Tensor:
    """Something to differentiate."""
    return h.pow(2).sum()


class DifferentiatesFunction(Small):
    def between(self, h: Tensor) -> Tensor:
        made: Tensor = h - torch.func.grad(energy)(h)
        return made


class DifferentiatesRows(Small):
    def between(self, h: Tensor) -> Tensor:
        made: Tensor = h - torch.func.vmap(torch.func.grad(energy))(h)
        return made


class MapsLayer(Small):
    """Calls a layer of its own under torch.vmap, which the layer alone cannot be taken out of."""

    def __init__(self) -> None:
        super().__init__()
        self.three = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.two(torch.func.vmap(self.three)(self.one(x)))
        return made.pow(2).mean()


class HoldsMapsLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = MapsLayerOnly(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.first(x))
        return made.pow(2).mean()


class MapsLayerOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.func.vmap(self.layer)(x)
        return made


class Mapped(Small):
    def between(self, h: Tensor) -> Tensor:
        made: Tensor = torch.vmap(lambda row: row * row.softmax(0))(h)
        return made


class ChecksNorm(Small):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def between(self, h: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.norm, h, use_reentrant=False)
        return made


class Checkpoints(Small):
    def between(self, h: Tensor) -> Tensor:
        made: Tensor = checkpoint(torch.tanh, h, use_reentrant=True)
        return made


class QuietWithoutAutocast(Small):
    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False), torch.no_grad():
            size = h.abs().amax(-1, keepdim=True)
        return h / size


class InInferenceMode(Small):
    def between(self, h: Tensor) -> Tensor:
        with torch.inference_mode():
            size = self.two(h)
            with torch.inference_mode(False):
                seen = self.one(h.detach())
        made: Tensor = h * size.clone() + seen
        return made


class InfersWholly(Small):
    def __init__(self) -> None:
        super().__init__()
        self.infer = torch.inference_mode()(self.one.forward)

    def between(self, h: Tensor) -> Tensor:
        made: Tensor = h * self.infer(h).clone()
        return made


class EnablesWhereItInfers(Small):
    def between(self, h: Tensor) -> Tensor:
        with torch.inference_mode(), torch.enable_grad():
            size = self.two(h)
        made: Tensor = h * size.clone()
        return made


class AsksWhetherItInfers(Small):
    def between(self, h: Tensor) -> Tensor:
        with torch.inference_mode():
            size = self.two(h) if torch.is_inference_mode_enabled() else self.one(h)
        made: Tensor = h * size.clone() if not torch.is_inference_mode_enabled() else h
        return made


class CastsItself(Small):
    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: Tensor = self.one(h)
        return made


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 0).sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x.unsqueeze(-1), lengths, batch_first=True, enforce_sorted=False)
        last: Tensor = self.cells(packed)[1]
        return last[-1].pow(2).mean()


class HoldsPacking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.part = nn.Linear(6, 6), Packs()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.part(self.one(x))
        return made


class LooksAtValues(Small):
    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Buffer(torch.triu(torch.full((6, 6), float("-inf")), 1))
        self.encoder = nn.TransformerEncoderLayer(1, 1, 4, dropout=0.0, batch_first=True)

    def between(self, h: Tensor) -> Tensor:
        seen = self.encoder(h.unsqueeze(-1), src_mask=self.mask).squeeze(-1)
        loss = functional.gaussian_nll_loss(h, seen, h.abs())
        likely: Tensor = Normal(h, 1 + h.abs()).log_prob(seen)  # type: ignore[no-untyped-call]  # torch does not type it
        return h + loss + likely


class HooksNode(Small):
    def between(self, h: Tensor) -> Tensor:
        if h.grad_fn is not None:
            h.grad_fn.register_prehook(lambda gradients: tuple(2 * one for one in gradients))
        return h


class HooksNodeBefore(Small):
    def between(self, h: Tensor) -> Tensor:
        node = None if h.grad_fn is None else h.grad_fn.next_functions[1][0]
        if node is not None:
            node.register_hook(lambda given, _: tuple(2 * one for one in given))
        return h


class HooksParameter(Small):
    def between(self, h: Tensor) -> Tensor:
        weight: Any = self.two.weight
        weight.register_post_accumulate_grad_hook(lambda parameter: None)
        return h


class Doubles(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return 2 * made if func is torch.ops.aten.tanh.default else made


class Dispatches(Small):
    def between(self, h: Tensor) -> Tensor:
        with Doubles():  # type: ignore[no-untyped-call]  # torch does not type it
            return h.tanh()


def hooked_parameter() -> nn.Module:
    model = Small()
    model.one.weight.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]  # torch does not type it
    return model


def hooked_module() -> nn.Module:
    model = Small()
    model.one.register_full_backward_hook(lambda module, given, made: None)
    return model


def captured(made: Callable[[], nn.Module]) -> Graph:
    return tracer.capture(made(), batch=SHAPES)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Applies, ("test_unseen.py:", "Doubled, an autograd.Function")),
        (HooksTensor, ("test_unseen.py:", "hook on a gradient")),
        (HooksNode, ("test_unseen.py:", "hook on a node of autograd")),
        (HooksNodeBefore, ("test_unseen.py:", "hook on a node of autograd")),
        (HooksParameter, ("test_unseen.py:", "hook on a gradient")),
        (Dispatches, ("test_unseen.py:", "Doubles, a TorchDispatchMode")),
        (Differentiates, ("test_unseen.py:", "a derivative in forward")),
        (DifferentiatesFunction, ("test_unseen.py:", "a derivative in forward")),
        (DifferentiatesRows, ("test_unseen.py:", "a derivative in forward")),
        (Mapped, ("test_unseen.py:", "by torch.vmap", "in a submodule of the model")),
        (MapsLayer, ("three is called under torch.vmap", "make a part around it opaque")),
        (ChecksNorm, ("test_unseen.py:", "norm.num_batches_tracked twice")),
        (hooked_parameter, ("parameter one.weight", "hook on its gradient")),
        (hooked_module, ("test_unseen.py:", "a module's hook on its backward")),
        (CastsItself, ("around ", "test_unseen.py:", "--precision bfloat16-autocast")),
        (Packs, ("test_unseen.py:", "in a submodule of the model")),
    ],
)
def test_what_an_export_does_not_see_is_refused_with_its_line(
    made: Callable[[], nn.Module], words: tuple[str, ...]
) -> None:
    with pytest.raises(CaptureError) as refused:
        captured(made)
    for word in words:
        assert word in str(refused.value)


def test_the_submodule_that_does_it_runs_as_it_is() -> None:
    graph = captured(HoldsPart)
    assert "part cannot be exported and is one opaque op" in " ".join(graph.notes)
    traced = tracer.trace(model := HoldsPart(), graph)
    x = torch.randn(8, 6)
    ours = torch.autograd.grad(traced.module(x)[0], list(model.parameters()))
    theirs = torch.autograd.grad(model(x), list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_layer_called_under_vmap_runs_as_it_is_with_the_part_that_calls_it() -> None:
    graph = captured(HoldsMapsLayer)
    assert sum("opaque" in op.target for _, op in graph.ops) == 1
    assert any(note.startswith("first cannot be exported and is one opaque op") for note in graph.notes)


def test_a_submodule_that_packs_sequences_runs_as_it_is() -> None:
    assert "part cannot be exported and is one opaque op" in " ".join(captured(HoldsPacking).notes)


def test_two_models_of_one_process_have_opaque_parts_of_one_name() -> None:
    graph, models = captured(HoldsPart), (HoldsPart(), HoldsPart())
    traced = [tracer.trace(model, graph) for model in models]
    x = torch.randn(8, 6)
    assert [one.module(x)[0] for one in traced] == [model(x) for model in models]
    assert [next(model.part.calls) for model in models] == [2, 2]


@pytest.mark.parametrize(
    "made",
    [
        Checkpoints,
        QuietWithoutAutocast,
        InInferenceMode,
        InfersWholly,
        EnablesWhereItInfers,
        AsksWhetherItInfers,
        LooksAtValues,
    ],
)
def test_what_is_captured_has_the_gradients_of_the_model(made: Callable[[], nn.Module]) -> None:
    model = made().double()
    traced = tracer.trace(model, {"x": torch.zeros(8, 6, dtype=torch.float64)})
    x = torch.randn(8, 6, dtype=torch.float64)
    ours, theirs = (gradients(model, loss) for loss in (traced.module(x)[0], model(x)))
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name])


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_part_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(8, 8), torch.jit.script(nn.Linear(8, 8)))
    with pytest.raises(CaptureError, match=r"^1 was compiled by torch\.jit, .* give the module that it was made of"):
        tracer.capture(model, batch={"input": (4, 8)})


class Encodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 6), 1, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x[None]).square().mean()  # type: ignore[no-any-return]


def test_what_torchs_encoder_computes_is_of_the_line_that_calls_it() -> None:
    nodes = tracer.trace(Encodes(), SHAPES).module.graph.nodes
    sources = {str(node.meta["source"]).partition(":")[0] for node in nodes if node.op == "call_function"}
    assert sources - {""} == {"tracer/test_unseen.py"}
