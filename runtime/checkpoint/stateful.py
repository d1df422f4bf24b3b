"""What a checkpoint is made of: nested dicts by the model's own names, and this rank's random state beside them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol, Union

import torch

from placer.runtime.distributed.world import World
from placer.runtime.weights.tensor_chunks import TensorChunks

Leaf = Union["State", torch.Tensor, TensorChunks, float, int, bool, str, tuple[float, ...], None]
State = dict[str, Leaf]
#: The part of a state that holds buffers which are no part of the model's own.
BESIDE = "beside"


class Stateful(Protocol):
    """What is saved: nested dicts of tensors (DTensors where sharded) and numbers, by the model's own names."""

    def state_dict(self) -> State:
        """Parameters, buffers and optimizer state of this rank."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` gave."""
        ...


def on_host(state: State) -> State:
    """A copy of `state` in host memory, which the steps that follow do not change."""
    return {name: _on_host(value) for name, value in state.items()}


def _on_host(value: Leaf) -> Leaf:
    if isinstance(value, dict):
        return on_host(value)
    if isinstance(value, TensorChunks):
        return value.on_host()
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def with_random_state(state: State, world: World) -> State:
    """`state`, and the states of this rank's random generators."""
    random: State = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(world.device)
    return {**state, "random": {str(world.rank): random}}


def take_random_state(state: State, world: World) -> None:
    """Take the random states out of `state` and set this rank's generators to its own."""
    every = state.pop("random")
    assert isinstance(every, dict)
    random = every[str(world.rank)]
    assert isinstance(random, dict)
    for kind, value in random.items():
        assert isinstance(value, torch.Tensor)
        if kind == "cpu":
            torch.set_rng_state(value)
        else:
            torch.cuda.set_rng_state(value, world.device)


def keep_random_of(state: State, world: World, names: Container[str]) -> bool:
    """Ask only for those of the random states that a checkpoint with these `names` has; whether it has some.

    One that was written by CPUs has none of GPUs.
    """
    every = state["random"]
    assert isinstance(every, dict)
    random = every[str(world.rank)]
    assert isinstance(random, dict)
    for kind in [kind for kind in random if random_key(world.rank, kind) not in names]:
        del random[kind]
    if not random:
        del state["random"]
    return bool(random)


def keep_buffers_of(state: State, names: Container[str]) -> tuple[str, ...]:
    """Ask only for those buffers beside the model's state that a checkpoint with these `names` has; the others."""
    beside = state.get(BESIDE, {})
    assert isinstance(beside, dict)
    lacking = tuple(name for name in beside if f"{BESIDE}.{name}" not in names)
    for name in lacking:
        del beside[name]
    return lacking


def keep_reached_of(state: State, names: Iterable[str]) -> None:
    """Ask for the optimizer's state only of weights of which a checkpoint with these `names` has some: no gradient had
    reached the others when it was written."""
    found, every = {name.rpartition(".")[0] for name in names}, state.get("optimizer", {})
    assert isinstance(every, dict)
    for name in [name for name, one in every.items() if isinstance(one, dict) and f"optimizer.{name}" not in found]:
        del every[name]


def random_key(rank: int, kind: str = "cpu") -> str:
    """The name under which a checkpoint holds a random state of a rank that wrote it: of the CPU every rank's."""
    return f"random.{rank}.{kind}"
