"""Checkpoints that are spoilt, and read as `placer weights` does: what it then writes is what was saved, or nothing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed import HashStore  # type: ignore[attr-defined]

from examples.parity.fuzz.pickles import spoiled_index, unread
from examples.parity.fuzz.seeds import MODEL, Seed, chain, planned
from examples.parity.fuzz.texts import spoiled_bytes
from examples.parity.fuzz.trees import spoiled
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.compatibility import last_fitting, planned_model
from placer.runtime.checkpoint.folder import Progress
from placer.runtime.checkpoint.stateful import State
from placer.runtime.distributed.world import World
from placer.runtime.weights.hf_export import export_weights

STEP, POSITION = 3, 5
PATH = f"step-{STEP:08d}"
INDEX, MARKER = ".metadata", "complete.json"
CANARY = "executed"


class _Saved:
    """The model's weights and an optimizer's state, as a run of one device saves them."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.weights = dict(chain().state_dict())

    def state_dict(self) -> State:
        """Tensors and numbers."""
        optimizer: State = {name: {"exp_avg": torch.ones(3), "step": torch.tensor(3.0)} for name in self.weights}
        return {"model": dict(self.weights), "optimizer": optimizer}

    def load_state_dict(self, state: State) -> None:
        """Nothing is loaded here."""


@cache
def plan() -> Plan:
    """The plan that the checkpoints are of."""
    return Plan.from_json(planned("one device", MODEL, {"x": (16, 8), "y": (16,)}, "h100", (), RunSettings()).text())


def checkpoints() -> tuple[Seed, ...]:
    """A checkpoint as placer writes it, and as it did before there were checksums."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            world = World(rank=0, size=1, device=torch.device("cpu"))
            made = Checkpoints(folder, world, fingerprint=plan().model.fingerprint)
            path = made.save(_Saved(), Progress(step=STEP, position=POSITION))
            files = {one.name: one.read_bytes() for one in sorted(path.iterdir())}
    finally:
        dist.destroy_process_group()
    marker = json.loads(files[MARKER])
    old = {name: marker[name] for name in ("step", "position", "fingerprint", "ranks")} | {"schema_version": 1}
    return (
        Seed(name="checkpoint", files=files, tree=marker),
        Seed(name="checkpoint without checksums", files=files | {MARKER: json.dumps(old).encode()}, tree=old),
    )


def spoiled_files(seed: Seed, random: Random) -> dict[str, bytes]:
    """The files of a checkpoint, one of which is spoilt, gone, or another's."""
    files = dict(seed.files)
    name = random.choice((INDEX, INDEX, MARKER, *files))
    pick = random.random()
    if pick < 0.5:
        files[name] = spoiled_bytes(files[name], random)
    elif pick < 0.55:
        other = random.choice(list(files))
        files[name], files[other] = files[other], files[name]
    elif pick < 0.6:
        del files[name]
    elif name == INDEX:
        files[name] = spoiled_index(files[name], random, CANARY)
    elif name == MARKER:
        files[name] = json.dumps(spoiled(seed.tree, random, 1)).encode(errors="surrogatepass")
    else:
        files[name] = unread(files[name])
    return {f"{PATH}/{name}": content for name, content in files.items()}


def read_checkpoint(folder: Path) -> Iterator[str]:
    """As `placer weights` does; what it wrote is compared, with nothing of placer, where there were checksums."""
    sound, target = plan(), folder / "weights"
    os.chdir(folder)
    try:
        found = last_fitting(folder, sound)
        export_weights(found.reader, planned_model(sound), target)
    except BaseException:
        if not (folder / CANARY).exists():
            raise
    if (folder / CANARY).exists():
        yield "code in the checkpoint was run"
        return
    if found.step < 0 or found.position < 0:
        yield f"the run goes on from step {found.step}, batch {found.position}"
    if b"files" not in (found.path / MARKER).read_bytes():
        return
    if (found.step, found.position) != (STEP, POSITION):
        yield f"the run goes on from step {found.step}, batch {found.position}, and was at {STEP}, {POSITION}"
    saved = _Saved().weights
    read = load_file(target / "model.safetensors")
    changed = [name for name in saved if not torch.equal(saved[name], read[name])]
    if changed:
        yield f"{changed[0]} is another than was saved"
