"""What ranks run for the tests of weights and checkpoints, found by import."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from examples.parity.cases import capture_of, run_case
from placer import tracer
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.program.lowering import lower
from placer.runtime import VerifyReport, load
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.folder import Progress
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.data_parallel import optimizer as optimizers
from placer.runtime.distributed.world import World
from placer.runtime.executor.executor import Executor
from placer.runtime.measuring.communication_record import Recorder, compare
from placer.runtime.stages.captured_model import run_dtype
from placer.runtime.weights import deferred_init as recording
from placer.runtime.weights.meta_model import prepared_model


@contextmanager
def world() -> Iterator[World]:
    """This rank of a pool, which gives a single rank no process group."""
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=torch.device("cpu"))
    finally:
        if alone:
            dist.destroy_process_group()


def batch(plan: Plan, step: int) -> dict[str, torch.Tensor]:
    """A random batch in the precision of the plan."""
    drawn = tracer.random_batch(plan.graph, plan.rows, step)
    return {name: value.to(run_dtype(plan, value.dtype)) for name, value in drawn.items()}


def initial(plan: Plan) -> tuple[str, ...]:
    """The names of the tensors that differ from those that one device makes of the seed."""
    found = load(plan, capture=capture_of(plan)).full_state_dict()
    return _different(found, prepared_model(plan, None, torch.device("cpu")).state_dict())


def from_folder(plan: Plan, folder: str, expected: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """The names of the tensors that differ from `expected` in a run that starts from a Hugging Face folder."""
    return _different(load(plan, weights=folder, capture=capture_of(plan)).full_state_dict(), expected)


def _different(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[str, ...]:
    lacking = tuple(name for name in expected if name not in found)
    return lacking + tuple(
        name for name, value in expected.items() if name in found and not torch.equal(found[name], value)
    )


def peak(plan: Plan, folder: str = "") -> tuple[int, int]:
    """The most bytes of real tensors alive at once while a rank loads, and what it holds in the end."""
    with mock.patch.object(recording, "SMALL", 16), counted() as count:
        executor = load(plan, weights=folder, capture=capture_of(plan))
    return count.peak, sum(_bytes(tensor) for tensor in executor.held_state().values())


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.numel() * local.element_size())


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that ops give and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(given):
            if type(leaf) is torch.Tensor and leaf.device.type == "cpu" and not isinstance(leaf, FakeTensor):
                self._see(leaf.untyped_storage())
        return given

    def _see(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place in self._known:
            return
        self._known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, place, size)

    def _forget(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


@contextmanager
def counted() -> Iterator[Count]:
    """A count of what the body makes."""
    count = Count()
    with count:
        yield count


def save(plan: Plan, folder: str, *, beside: bool = False) -> list[float]:
    """Two steps, a checkpoint, and the losses of two more."""
    executor = load(plan, capture=capture_of(plan))
    for step in range(2):
        executor.step(batch(plan, step))
    with world() as ranks:
        checkpoints = Checkpoints(folder, ranks, fingerprint=plan.model.fingerprint)
        write = checkpoints.save_beside if beside else checkpoints.save
        write(TrainingState(executor), Progress(step=2, position=2))
        losses = [executor.step(batch(plan, step)) for step in (2, 3)]
        checkpoints.finish()
    return losses


def exported(plan: Plan, folder: str) -> dict[str, torch.Tensor]:
    """The whole state after a step, of which a checkpoint is saved."""
    executor = load(plan, capture=capture_of(plan))
    executor.step(batch(plan, 0))
    with world() as ranks:
        Checkpoints(folder, ranks, fingerprint=plan.model.fingerprint).save(
            TrainingState(executor), Progress(step=1, position=1)
        )
    return executor.full_state_dict()


def save_beside(plan: Plan, folder: str) -> list[float]:
    """The same, the checkpoint written while the steps after it are done."""
    return save(plan, folder, beside=True)


def resume(plan: Plan, folders: tuple[str, ...]) -> list[list[float]]:
    """The losses of two more steps from the checkpoint in each folder."""
    executor = load(plan, capture=capture_of(plan))
    return [_resumed(executor, folder) for folder in folders]


def resume_on_host(plan: Plan, folders: tuple[str, ...]) -> list[list[float]]:
    """The same with the optimizer's state apart from the devices, though these are processes."""
    with mock.patch.object(optimizers, "host_of", lambda plan, device: torch.device("cpu")):
        return resume(plan, folders)


def _resumed(executor: Executor, folder: str) -> list[float]:
    plan = executor.plan
    with world() as ranks:
        progress = Checkpoints(folder, ranks, fingerprint=plan.model.fingerprint).resume(TrainingState(executor))
    assert progress is not None
    executor.steps = progress.step
    return [executor.step(batch(plan, progress.position + step)) for step in (0, 1)]


def frozen(plan: Plan) -> tuple[VerifyReport, tuple[str, ...], tuple[str, ...], int]:
    """A comparison with one device; the frozen parameters that changed; those with optimizer state or a gradient; and
    what a recorded step communicated otherwise than its program says."""
    report = run_case(plan, 2)
    before = load(plan, capture=capture_of(plan)).full_state_dict()
    executor = load(plan, capture=capture_of(plan))
    for step in range(2):
        executor.step(batch(plan, step))
    with Recorder() as recorder:
        executor.step(batch(plan, 2))
    after = executor.full_state_dict()
    kept = {name for name, parameter in plan.graph.parameters.items() if not parameter.trainable}
    changed = tuple(name for name in kept if not torch.equal(before[name], after[name]))
    touched = tuple(name for name in kept if name in executor.updater.updated)
    program = lower(plan)[dist.get_rank() if dist.is_initialized() else 0]
    differences = () if plan.layouts else compare(program, recorder.records)
    return report, changed, touched, len(differences)


def freeze(executor: Executor, model: nn.Module) -> None:
    """Freezes the first layer."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.0" not in name)


def freeze_for_a_while(executor: Executor, model: nn.Module) -> None:
    """Freezes all, evaluates, and has it train again."""
    model.requires_grad_(False)
    executor.evaluate(batch(executor.plan, 5))
    model.requires_grad_(True)


def zero_a_row(executor: Executor, model: nn.Module) -> None:
    """Writes one row of one weight."""
    with torch.no_grad():
        next(one for one in model.parameters() if one.dim() > 1)[0] = 0.0


def as_advised(executor: Executor, model: nn.Module) -> None:
    """The same in a model that has the weights of the run, to which it is given."""
    model.load_state_dict(executor.full_state_dict())
    zero_a_row(executor, model)
    executor.load_state_dict(model.state_dict())


def halve(executor: Executor, model: nn.Module) -> None:
    """Writes every weight."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


def halve_state(executor: Executor, model: nn.Module) -> None:
    """The same by what `load` returned."""
    executor.load_state_dict({name: value * 0.5 for name, value in executor.full_state_dict().items()})


def bring_up(executor: Executor, model: nn.Module) -> None:
    """Gives the model the weights of the run, to look at them."""
    model.load_state_dict(executor.full_state_dict())


def after_change(plan: Plan, change: Callable[[Executor, nn.Module], None]) -> str | dict[str, torch.Tensor]:
    """The weights after a step, a change of the model and another step; why the second step was refused."""
    model = prepared_model(plan, None, torch.device("cpu"))
    executor = load(plan, model, capture=capture_of(plan))
    executor.step(batch(plan, 0))
    change(executor, model)
    try:
        executor.step(batch(plan, 1))
    except UsageError as error:
        return str(error)
    return executor.full_state_dict()


def given_back(plan: Plan) -> tuple[str, ...]:
    """The names of the tensors that are not those that were loaded in place of the first."""
    executor = load(plan, capture=capture_of(plan))
    wanted = {name: value + 1 for name, value in executor.full_state_dict().items()}
    executor.load_state_dict(wanted)
    return _different(executor.full_state_dict(), wanted)
