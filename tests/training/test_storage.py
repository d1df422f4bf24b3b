"""Files of checkpoints and weights: nothing in them is run, and nothing of them is taken that was not written."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from commands import CLUSTER, HERE, Command, command_in
from placer import tracer
from placer.api import plan as planned
from placer.errors import ExecutionError, UsageError
from placer.runtime.distributed.launch import launch
from placer.runtime.storage.checksums import BLOCK_BYTES, Summed, opened, sums_of
from placer.runtime.storage.reader import CheckpointReader
from placer.runtime.weights.hf_folder import pretrained
from placer.runtime.weights.rank_weights import Box, ModelInMemory
from placer.runtime.weights.tensor_chunks import LoadPlanner

pytestmark = pytest.mark.in_turns

SECONDS = 1800.0
STEP = "step-00000001"
MODEL = "bad_models:tiny"


class Calls:
    """Pickled as a call that makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a plan of one device, a checkpoint of its first step, and the weights of its end."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "one.yaml").write_text(CLUSTER.replace("count: 2", "count: 1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        planned(MODEL, str(folder / "one.yaml"), batch="8x32").save(folder / "plan.json")
        ran = ("--steps", "1", "--checkpoint", str(folder / "ckpt"), "--save-weights", str(folder / "weights"))
        launch(str(folder / "plan.json"), ran, 1, SECONDS)
        yield folder


@pytest.fixture
def here(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return shutil.copytree(trained, tmp_path / "here")


@pytest.fixture
def command(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_in(here, monkeypatch, capsys)


def remark(checkpoint: Path, files: dict[str, dict[str, object]] | None) -> None:
    """Another complete.json: with these checksums and the digest that fits, or as it was before there were any."""
    document = json.loads((checkpoint / "complete.json").read_text())
    kept = {name: document[name] for name in ("step", "position", "fingerprint", "ranks", "schema_version")}
    if files is not None:
        kept["files"] = files
        text = json.dumps(kept, sort_keys=True)
        kept["digest"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    (checkpoint / "complete.json").write_text(json.dumps(kept))


def craft(checkpoint: Path, canary: Path, *, checksums: bool) -> None:
    """An index that makes a folder, in a checkpoint whose checksums fit, or that has none."""
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Calls(canary)))
    sums = {one.name: sums_of(one).model_dump() for one in checkpoint.iterdir() if one.name != "complete.json"}
    remark(checkpoint, sums if checksums else None)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("name", ["weights", "replan"])
def test_a_crafted_index_runs_nothing_and_is_refused_by(
    name: str, checksums: bool, here: Path, command: Command
) -> None:
    craft(here / "ckpt" / STEP, here / "made", checksums=checksums)
    more = ("--to", "out") if name == "weights" else ("--cluster", "one.yaml", "-o", "new.json")
    ended = command(name, "plan.json", "--checkpoint", "ckpt", *more)
    assert ended.code in (1, 2) and "posix.mkdir" in ended.error and "nothing of it has been run" in ended.error
    assert not (here / "made").exists() and not (here / "out").exists() and not (here / "new.json").exists()


def test_a_crafted_index_runs_nothing_and_is_refused_by_execute(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    craft(here / "ckpt" / STEP, here / "made", checksums=True)
    with pytest.raises(ExecutionError, match=r"posix.mkdir.*nothing of it has been run") as caught:
        launch(str(here / "plan.json"), ("--steps", "2", "--checkpoint", str(here / "ckpt")), 1, SECONDS)
    assert "Traceback" not in str(caught.value) and not (here / "made").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.filterwarnings("ignore:torch.distributed is unavailable")
def test_what_lies_beside_tensors_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    save({"x": Calls(tmp_path / "made")}, storage_writer=FileSystemWriter(tmp_path / "c"), no_dist=True)
    with pytest.raises(CheckpointException, match="Weights only load failed"):
        load({"x": 1}, storage_reader=CheckpointReader(tmp_path / "c", None), planner=LoadPlanner(), no_dist=True)
    assert not (tmp_path / "made").exists()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 4
    path.write_bytes(content)


FILES = (".metadata", "__0_0.distcp", "complete.json")


@pytest.mark.parametrize("name", FILES)
def test_a_bit_that_turned_in_any_file_of_a_checkpoint_is_found_and_the_file_named(
    name: str, here: Path, command: Command
) -> None:
    checkpoint = here / "ckpt" / STEP
    assert sorted(path.name for path in checkpoint.iterdir()) == sorted(FILES)
    size = (checkpoint / name).stat().st_size
    for at in (0, size // 3, size // 2, size - 2):
        flip(checkpoint / name, at)
        ended = command("weights", "plan.json", "--checkpoint", "ckpt", "--to", "out")
        assert ended.code == 2 and name in ended.error and not (here / "out").exists()
        flip(checkpoint / name, at)
    assert command("weights", "plan.json", "--checkpoint", "ckpt", "--to", "out").code == 0


def test_a_turned_bit_is_found_by_the_run_that_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    data = here / "ckpt" / STEP / "__0_0.distcp"
    flip(data, data.stat().st_size // 2)
    with pytest.raises(ExecutionError, match=r"__0_0.distcp has been changed"):
        launch(str(here / "plan.json"), ("--steps", "2", "--checkpoint", str(here / "ckpt")), 1, SECONDS)


def test_a_checkpoint_without_checksums_is_read_and_said_to_have_none(here: Path, command: Command) -> None:
    assert "checksum" not in command("weights", "plan.json", "--checkpoint", "ckpt", "--to", "sound").error
    remark(here / "ckpt" / STEP, None)
    ended = command("weights", "plan.json", "--checkpoint", "ckpt", "--to", "out")
    assert ended.code == 0 and "was written without checksums" in ended.error
    same = "model.safetensors"
    assert (here / "out" / same).read_bytes() == (here / "sound" / same).read_bytes()


def tiny() -> nn.Module:
    return tracer.resolve(MODEL).build("meta")


def read_all(folder: Path) -> None:
    model = tiny()
    source = pretrained(str(folder), model, ModelInMemory({}))
    for name, tensor in model.state_dict().items():
        source.read(name, Box(shape=tuple(tensor.shape)))


def test_a_bit_that_turned_in_weights_that_placer_wrote_is_found(here: Path, command: Command) -> None:
    folder = here / "weights"
    read_all(folder)
    file = folder / "model.safetensors"
    for at in (0, 60, file.stat().st_size // 2, file.stat().st_size - 1):
        flip(file, at)
        with pytest.raises(UsageError, match=r"model.safetensors has been changed.*remove checksums.json"):
            read_all(folder)
        flip(file, at)
    flip(file, file.stat().st_size - 1)
    (folder / "checksums.json").unlink()
    read_all(folder)


def test_a_part_of_a_file_is_read_without_the_rest(tmp_path: Path) -> None:
    content = torch.arange(3 * BLOCK_BYTES // 8 + 5).numpy().tobytes()
    path = tmp_path / "file"
    path.write_bytes(content)
    told = Summed()
    for start in range(0, len(content), 1_000_003):
        told.add(memoryview(content)[start : start + 1_000_003])
    sums = sums_of(path)
    assert told.sums() == sums and sums.crc32[0] == zlib.crc32(content[:BLOCK_BYTES])
    flip(path, BLOCK_BYTES + 7)
    with opened(path, sums) as file:
        file.verify(0, BLOCK_BYTES)
        file.verify(2 * BLOCK_BYTES, len(content))
        assert file.read(9) == content[:9]
        with pytest.raises(UsageError, match=f"file has been changed: bytes {BLOCK_BYTES} to {2 * BLOCK_BYTES}"):
            file.verify(BLOCK_BYTES - 1, BLOCK_BYTES + 1)


def test_whoever_may_read_the_other_files_may_read_the_weights(trained: Path) -> None:
    modes = {path.name: path.stat().st_mode for path in (trained / "weights").iterdir()}
    assert len(modes) > 1 and len(set(modes.values())) == 1, modes
