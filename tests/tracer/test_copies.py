"""A copy of a model is a model of its own, also where its hooks are functions that hold the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placer import tracer
from placer.tracer.export.state.copies import copied


class Keeps(nn.Module):
    """Adds to its loss what hooks kept of its layers: by the model, by what it keeps them in, and by a default."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(6, 6) for _ in range(3))
        self.kept: dict[str, Tensor] = {}
        kept = self.kept

        def keep(name: str, made: Tensor) -> None:
            self.kept[name] = made

        self.one.register_forward_hook(lambda _, __, made: keep("one", made))
        self.two.register_forward_hook(lambda _, __, made: kept.update(two=made))
        self.three.register_forward_hook(lambda _, __, made, model=self: model.kept.update(three=made))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.three(self.two(self.one(x))).pow(2).mean()
        return made + sum(tensor.abs().mean() for tensor in self.kept.values())


def test_hooks_of_a_copy_write_into_the_copy() -> None:
    model, x = Keeps(), torch.randn(4, 6)
    made = copied(model)
    assert torch.equal(made(x), model(x))
    assert made.kept.keys() == {"one", "two", "three"}
    assert all(made.kept[name] is not model.kept[name] for name in model.kept)


def test_hooks_of_a_copy_share_what_is_no_part_of_the_model() -> None:
    shared: list[int] = []
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda module, given, made: shared.append(len(given)))
    copied(model)(torch.zeros(1, 2))
    assert shared == [1]


def test_hooks_of_a_copy_share_a_count_with_each_other_and_not_with_the_model() -> None:
    model, seen, count = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), list[int](), 0

    def counts(*_: object) -> None:
        nonlocal count
        count += 1

    model[0].register_forward_hook(counts)
    model[1].register_forward_hook(lambda *_: seen.append(count))
    copied(model)(torch.zeros(1, 2))
    assert seen == [1] and count == 0


@pytest.mark.in_turns
def test_what_hooks_keep_is_captured_of_a_model_with_weights_as_of_one_without() -> None:
    with torch.device("meta"):
        without = Keeps()
    graphs = [tracer.capture(model, batch={"x": (8, 6)}) for model in (without, Keeps())]
    targets = [[op.target for _, op in graph.ops] for graph in graphs]
    assert targets[0] == targets[1] and sum("abs" in target for target in targets[0]) == 3


def gated(h: Tensor, width: int) -> Tensor:
    return torch.tanh(h[:, :width]) * torch.sigmoid(h[:, width:])


class Gated(nn.Module):
    """As VITS and WaveGlow gate, by a scripted function that a layer is given."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.gate = nn.Linear(6, 8), torch.jit.script(gated)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.gate(self.one(x), 4)
        return made.pow(2).mean()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_function_that_a_module_keeps_is_that_of_the_copy() -> None:
    model, x = Gated(), torch.randn(4, 6)
    assert torch.equal(tracer.trace(copied(model), tracer.capture(model, batch={"x": (4, 6)})).module(x)[0], model(x))


def halved(h: Tensor) -> Tensor:
    """Run by torch's older executor alone: it ends the process where one goes on with what the newer one began."""
    return torch.relu(h) * 0.5 + h.sigmoid()


class Halved(nn.Module):
    """Calls a scripted function."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.halved = nn.Linear(6, 8), torch.jit.script(halved)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.halved(self.one(x))
        return made.pow(2).mean()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_function_of_torchs_older_executor_runs_op_by_op_too() -> None:
    """Some libraries choose it for the whole process as they are imported."""
    newer = torch._C._jit_set_profiling_executor(False)
    try:
        model, x = Halved(), torch.randn(4, 6)
        assert model(x).isfinite()
        found = tracer.trace(copied(model), tracer.capture(model, batch={"x": (4, 6)}))
        assert torch.equal(found.module(x)[0], model(x))
    finally:
        torch._C._jit_set_profiling_executor(newer)


class Irrep(tuple[int, int]):
    """As e3nn's: a pair that has no length."""

    def __len__(self) -> int:
        raise NotImplementedError


class Turning(nn.Module):
    """Holds such pairs by themselves, in a tuple and in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.irrep = nn.Linear(6, 6), Irrep((1, -1))
        self.irreps, self.more = (Irrep((0, 1)), self.irrep), [self.irrep]

    def forward(self, x: Tensor) -> Tensor:
        _, parity = self.irrep
        made: Tensor = parity * self.one(x)
        return made.pow(2).mean()


def test_tuples_of_a_class_that_has_no_length_are_gone_through() -> None:
    model, x = Turning(), torch.randn(4, 6)
    assert torch.equal(tracer.trace(copied(model), tracer.capture(model, batch={"x": (4, 6)})).module(x)[0], model(x))
