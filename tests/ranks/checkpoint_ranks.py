"""What two ranks of the checkpoint tests run: `python -m checkpoint_ranks DEED FOLDER`, under torchrun."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from execute_plans import two_rank_plan
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.folder import Progress
from placer.runtime.checkpoint.stateful import State
from placer.runtime.distributed.world import World, joined

OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
LAYERS = 4


class Layers(torch.nn.ModuleDict):
    """Named layers; FSDP2 wants a forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.values():
            x = layer(x)
        return x


class Trained:
    """Some layers of a model with AdamW, after one step whose gradients depend on the layer alone."""

    def __init__(self, names: range, *, trained: bool, sharded: bool = False) -> None:
        self.model = Layers({f"layer{i}": torch.nn.Linear(4, 4) for i in names})
        for i, layer in zip(names, self.model.values(), strict=True):
            assert isinstance(layer, torch.nn.Linear)
            torch.manual_seed(100 + i if trained else 7)
            torch.nn.init.normal_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
        if sharded:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (2,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        if trained:
            for parameter in self.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            self.optimizer.step()

    def state_dict(self) -> State:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return cast(State, {"model": model, "optimizer": optimizer})

    def load_state_dict(self, state: State) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],  # type: ignore[arg-type]
            optim_state_dict=state["optimizer"],  # type: ignore[arg-type]
            options=OPTIONS,
        )

    def whole(self) -> dict[str, torch.Tensor]:
        """Every tensor of the state, gathered."""
        state = self.state_dict()
        found = {}
        for part in ("model", "optimizer"):
            for name, value in state[part].items():  # type: ignore[union-attr]
                if isinstance(value, torch.Tensor):
                    found[name] = value.full_tensor() if hasattr(value, "full_tensor") else value
        return found


def layouts(world: World, *, trained: bool) -> dict[str, Trained]:
    """The same model whole on both ranks, as two stages, and sharded."""
    half = LAYERS // 2
    return {
        "data": Trained(range(LAYERS), trained=trained),
        "pipeline": Trained(range(world.rank * half, (world.rank + 1) * half), trained=trained),
        "sharded": Trained(range(LAYERS), trained=trained, sharded=True),
    }


def matrix(world: World, folder: Path) -> None:
    """Saved under each layout, loaded under each other."""
    expected = Trained(range(LAYERS), trained=True).whole()
    for source, saved in layouts(world, trained=True).items():
        checkpoints = Checkpoints(folder / source, world, fingerprint="f")
        checkpoints.save(saved, Progress(step=1, position=3))
        for target, loaded in layouts(world, trained=False).items():
            assert checkpoints.resume(loaded) == Progress(step=1, position=3)
            for name, value in loaded.whole().items():
                assert torch.equal(value, expected[name]), f"{source} -> {target}: {name}"
            dist.barrier()
            if world.first:
                print(f"{source} -> {target}: equal")


def killed_while_writing(world: World, folder: Path) -> None:
    """A complete checkpoint, then one during which rank 1 is killed after it wrote its file."""
    trained = Trained(range(LAYERS), trained=True)
    checkpoints = Checkpoints(folder, world, fingerprint="f")
    checkpoints.save(trained, Progress(step=1, position=1))
    if world.rank == 1:
        real = os.fsync

        def last_words(handle: int) -> None:
            real(handle)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, "fsync", last_words)  # noqa: B010 - as the checkpoint writer will find it
    checkpoints.save(trained, Progress(step=2, position=2))


def main() -> None:
    deed = {"matrix": matrix, "killed": killed_while_writing}[sys.argv[1]]
    with joined(two_rank_plan(), timeout_seconds=200) as world:
        deed(world, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
