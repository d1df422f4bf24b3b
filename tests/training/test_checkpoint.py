"""Checkpoints: complete or absent, exact, and loadable under another layout."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed import HashStore  # type: ignore[attr-defined]

from examples.parity.cases import Case, plan_of
from examples.parity.models import TEXT
from placer.errors import ExecutionError, StalePlanError, UsageError
from placer.plans.plan import Plan
from placer.plans.settings import Precision
from placer.runtime import load
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.final_weights import save_weights
from placer.runtime.checkpoint.folder import Progress, latest
from placer.runtime.checkpoint.stateful import State
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.distributed.launch import launch_module
from placer.runtime.distributed.world import World
from placer.runtime.storage.checksums import Summed
from placer.runtime.training.run_report import LearningRate
from placer.runtime.verify.batches import uneven_batch
from placer.runtime.weights import hf_export
from writing_models import BATCH

pytestmark = pytest.mark.in_turns

SECONDS = 1800.0


class Numbers:
    """A state of one tensor."""

    def __init__(self, value: float, name: str = "weight") -> None:
        self.tensor, self.name = torch.full((3,), value), name

    def state_dict(self) -> State:
        return {"model": {self.name: self.tensor}}

    def load_state_dict(self, state: State) -> None:
        model = state["model"]
        assert isinstance(model, dict)
        value = model[self.name]
        assert isinstance(value, torch.Tensor)
        self.tensor = value


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield World(rank=0, size=1, device=torch.device("cpu"))
    dist.destroy_process_group()


def test_a_run_goes_on_from_what_was_saved_with_its_random_state(world: World, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, world, fingerprint="f")
    torch.manual_seed(3)
    path = checkpoints.save(Numbers(2.0), Progress(step=5, position=11))
    drawn = torch.rand(4)
    loaded = Numbers(0.0)
    assert checkpoints.resume(loaded) == Progress(step=5, position=11)
    assert torch.equal(loaded.tensor, torch.full((3,), 2.0)) and torch.equal(torch.rand(4), drawn)
    assert latest(tmp_path) == path


def test_both_copies_of_a_tied_parameter_on_a_rank_go_on_from_what_was_saved(world: World, tmp_path: Path) -> None:
    """Two stages of one rank have one each."""
    plan = plan_of(
        Case(model="examples.parity.models:words", shapes=TEXT, positions=1, turns=2, schedule="interleaved")
    )
    batches = [uneven_batch(plan, step) for step in range(4)]
    trained = load(plan)
    for batch in batches[:2]:
        trained.step(batch)
    Checkpoints(tmp_path, world, fingerprint="f").save(TrainingState(trained), Progress(step=2, position=2))
    resumed = load(plan)
    Checkpoints(tmp_path, world, fingerprint="f").resume(TrainingState(resumed))
    resumed.steps = trained.steps
    assert any("@" in name for name in resumed.updater.named)
    assert [resumed.step(batch) for batch in batches[2:]] == [trained.step(batch) for batch in batches[2:]]
    states = (TrainingState(one).state_dict()["model"] for one in (trained, resumed))
    one, other = states
    assert isinstance(one, dict) and isinstance(other, dict)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())  # type: ignore[arg-type]


class Older(TrainingState):
    """As an older placer saved it."""

    def state_dict(self) -> State:
        return {name: part for name, part in super().state_dict().items() if name != "beside"}


@pytest.mark.parametrize("kind", [TrainingState, Older])
def test_buffers_that_are_not_persistent_and_written_go_on_too(
    kind: type[TrainingState], world: World, tmp_path: Path
) -> None:
    plan = plan_of(Case(model="writing_models:hidden_counting", shapes=BATCH))
    batches = [uneven_batch(plan, step) for step in range(4)]
    trained, resumed = load(plan), load(plan)
    for batch in batches[:2]:
        trained.step(batch)
    Checkpoints(tmp_path / "c", world, fingerprint="f").save(kind(trained), Progress(step=2, position=2))
    checkpoints = Checkpoints(tmp_path / "c", world, fingerprint="f")
    assert checkpoints.resume(TrainingState(resumed)) == Progress(step=2, position=2)
    same = [resumed.step(batch) for batch in batches[2:]] == [trained.step(batch) for batch in batches[2:]]
    assert same == (kind is TrainingState)
    told = [note for note in checkpoints.notes if "lacks the buffers layers.0.one, layers.0.two, which" in note]
    assert len(told) == (kind is Older)
    save_weights(plan, world, TrainingState(resumed), str(tmp_path / "w"))
    weights = load_file(tmp_path / "w" / "model.safetensors")
    assert {"layers.0.three", "layers.2.one"} <= {*weights} and "layers.0.one" not in weights


def words_plan(precision: Precision, optimizer: str = "adamw") -> Plan:
    return plan_of(Case(model="examples.parity.models:words", shapes=TEXT, precision=precision, optimizer=optimizer))


def part(state: State, name: str) -> dict[str, torch.Tensor]:
    found = state[name]
    assert isinstance(found, dict)
    return {key: value.clone() for key, value in found.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(
    ("saved", "planned"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float16")]
)
def test_a_run_in_another_precision_goes_on_from_the_float32_values(
    saved: Precision, planned: Precision, world: World, tmp_path: Path
) -> None:
    trained, resumed = load(words_plan(saved)), load(words_plan(planned))
    trained.step(uneven_batch(trained.plan, 0))
    Checkpoints(tmp_path, world, fingerprint="f").save(TrainingState(trained), Progress(step=1, position=1))
    state = TrainingState(trained).state_dict()
    exact = part(state, "model") | part(state, "masters")
    Checkpoints(tmp_path, world, fingerprint="f").resume(TrainingState(resumed))
    found = TrainingState(resumed).state_dict()
    weights, masters = part(found, "model"), part(found, "masters")
    assert len(masters) == (0 if planned == "float32" else len(exact))
    assert all(torch.equal(tensor, exact[name].to(tensor.dtype)) for name, tensor in weights.items())
    assert all(torch.equal(tensor, exact[name]) for name, tensor in masters.items())


def test_a_checkpoint_of_another_optimizer_is_refused_by_its_name(world: World, tmp_path: Path) -> None:
    trained, other = load(words_plan("float32", "sgd")), load(words_plan("bfloat16"))
    Checkpoints(tmp_path, world, fingerprint="f").save(TrainingState(trained), Progress(step=1, position=1))
    said = "is of a run with sgd with momentum in float32, the plan's has adamw in bfloat16.*placer weights"
    with pytest.raises(UsageError, match=said):
        Checkpoints(tmp_path, world, fingerprint="f").resume(TrainingState(other))


def test_what_an_optimizer_without_state_leaves_of_a_checkpoint_is_said(world: World, tmp_path: Path) -> None:
    plain = words_plan("float32", "sgd")
    plain = replace(plain, settings=replace(plain.settings, momentum=0.0))
    trained, other = load(words_plan("float32")), load(plain)
    trained.step(uneven_batch(trained.plan, 0))
    Checkpoints(tmp_path, world, fingerprint="f").save(TrainingState(trained), Progress(step=1, position=1))
    resuming = Checkpoints(tmp_path, world, fingerprint="f")
    resuming.resume(TrainingState(other))
    (note,) = resuming.notes
    assert "of a run with adamw; the plan's optimizer keeps no exp_avg, exp_avg_sq, which are left out" in note


def test_weights_are_exported_whatever_killed_runs_left_of_theirs(world: World, tmp_path: Path) -> None:
    left = Checkpoints(tmp_path / ".w.checkpoint", world, fingerprint="f")
    for _ in range(2):  # each was killed after it had written its checkpoint
        left.save(Numbers(1.0), Progress(step=0, position=0))
    assert len([*(tmp_path / ".w.checkpoint").iterdir()]) == 2
    del left
    plan = words_plan("float32")
    save_weights(plan, world, TrainingState(load(plan)), str(tmp_path / "w"))
    assert [path.name for path in tmp_path.iterdir()] == ["w"] and (tmp_path / "w" / "model.safetensors").is_file()


def test_a_disk_that_is_full_as_weights_are_exported_is_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, limits = words_plan("float32"), resource.getrlimit(resource.RLIMIT_FSIZE)
    real = hf_export.require_new

    def full(folder: str | Path) -> None:
        real(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))

    monkeypatch.setattr(hf_export, "require_new", full)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(ExecutionError, match=r"weights could not be written to .*File too large.*; free space"):
            save_weights(plan, world, TrainingState(load(plan)), str(tmp_path / "w"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_without_checkpoints_resumes_nothing(world: World, tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", world, fingerprint="f").resume(Numbers(1.0)) is None


def test_the_last_complete_one_is_taken_and_old_ones_are_removed(world: World, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, world, fingerprint="f", keep=2)
    for step in (1, 2, 3):
        checkpoints.save(Numbers(float(step)), Progress(step=step, position=step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    (tmp_path / "step-00000003" / "complete.json").unlink()
    (tmp_path / ".step-00000004.partial").mkdir()
    loaded = Numbers(0.0)
    assert checkpoints.resume(loaded) == Progress(step=2, position=2)
    assert loaded.tensor[0] == 2.0
    assert [note.partition(" cannot be read: ")[2] for note in checkpoints.notes] == [
        "complete.json is missing (was it copied in part?); it is passed over"
    ]


def test_what_a_killed_run_left_is_removed_by_the_next_save(world: World, tmp_path: Path) -> None:
    (tmp_path / ".step-00000004.partial").mkdir()
    Checkpoints(tmp_path, world, fingerprint="f").save(Numbers(1.0), Progress(step=5, position=5))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def test_a_checkpoint_of_another_model_is_refused(world: World, tmp_path: Path) -> None:
    Checkpoints(tmp_path, world, fingerprint="f").save(Numbers(1.0), Progress(step=1, position=1))
    another = Checkpoints(tmp_path, world, fingerprint="g")
    with pytest.raises(StalePlanError, match=r"of another model .*\(weights of these names, of other sizes or"):
        another.resume(Numbers(1.0))
    with pytest.raises(StalePlanError, match=r"of another model .*\(the checkpoint has no bias\)"):
        another.resume(Numbers(1.0, "bias"))


def test_a_checkpoint_that_lacks_a_parameter_or_is_damaged_is_refused(world: World, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, world, fingerprint="f")
    path = checkpoints.save(Numbers(1.0), Progress(step=1, position=1))
    with pytest.raises(StalePlanError, match=r"is of another model.*the checkpoint has no bias\)"):
        checkpoints.resume(Numbers(1.0, "bias"))
    next(path.glob("*.distcp")).write_bytes(b"")
    with pytest.raises(UsageError, match="does not load"):
        checkpoints.resume(Numbers(1.0))


def two_saved(world: World, folder: Path) -> Checkpoints:
    """Steps 1 and 2, whose value is the step."""
    checkpoints = Checkpoints(folder, world, fingerprint="f")
    for step in (1, 2):
        checkpoints.save(Numbers(float(step)), Progress(step=step, position=step))
    return checkpoints


def break_marker(path: Path) -> None:
    (path / "complete.json").write_text("{half")


def cut_short(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-100])


def scramble(path: Path) -> None:
    file = next(path.glob("*.distcp"))
    file.write_bytes(b"\0" * file.stat().st_size)


def break_index(path: Path) -> None:
    (path / ".metadata").write_bytes(b"no pickle")


@pytest.mark.parametrize(
    ("damage", "said"),
    [(break_marker, "complete.json"), (cut_short, "is cut short"), (scramble, "rank 0"), (break_index, ".metadata")],
)
def test_a_checkpoint_that_cannot_be_read_is_kept_and_the_one_before_it_taken(
    world: World, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    checkpoints = two_saved(world, tmp_path)
    damage(tmp_path / "step-00000002")
    loaded = Numbers(0.0)
    assert checkpoints.resume(loaded) == Progress(step=1, position=1)
    assert loaded.tensor[0] == 1.0
    assert said in checkpoints.notes[0] and "step-00000002.unreadable" in checkpoints.notes[0]
    for step in (2, 3, 4):
        checkpoints.save(Numbers(1.0), Progress(step=step, position=step))
    assert (tmp_path / "step-00000002.unreadable").is_dir()


def test_where_no_checkpoint_can_be_read_the_run_is_refused_and_nothing_is_touched(
    world: World, tmp_path: Path
) -> None:
    checkpoints = two_saved(world, tmp_path)
    for path in tmp_path.iterdir():
        break_marker(path)
    with pytest.raises(UsageError, match=r"step-00000002 does not load: complete.json.*step-00000001 does not load"):
        checkpoints.resume(Numbers(0.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_folder_that_another_run_uses_is_refused(world: World, tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, world, fingerprint="f")
    assert first.resume(Numbers(1.0)) is None
    with pytest.raises(UsageError, match="another run uses the checkpoint folder"):
        Checkpoints(tmp_path, world, fingerprint="f").resume(Numbers(1.0))
    del first
    assert Checkpoints(tmp_path, world, fingerprint="f").resume(Numbers(1.0)) is None


def test_what_a_full_disk_left_is_removed(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = two_saved(world, tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ExecutionError, match="No space left"):
        checkpoints.save(Numbers(3.0), Progress(step=3, position=3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_disk_that_fills_up_within_a_tensor_is_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's archive says "unexpected pos 704 vs 598" then."""
    added, real = [], Summed.add

    def full(self: Summed, piece: memoryview) -> None:
        added.append(len(piece))
        if len(added) > 3:
            raise OSError(28, "No space left on device")
        real(self, piece)

    monkeypatch.setattr(Summed, "add", full)
    with pytest.raises(ExecutionError, match="No space left on device; free space"):
        Checkpoints(tmp_path, world, fingerprint="f").save(Numbers(3.0), Progress(step=3, position=3))


def test_a_folder_that_cannot_be_written_says_so(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExecutionError, match="could not be written"):
        Checkpoints(tmp_path / "file", world, fingerprint="f").save(Numbers(1.0), Progress(step=1, position=1))


def test_every_layout_loads_what_every_other_saved(tmp_path: Path) -> None:
    output = launch_module(("checkpoint_ranks", "matrix", str(tmp_path)), 2, SECONDS).output
    names = ("data", "pipeline", "sharded")
    assert all(f"{source} -> {target}: equal" in output for source in names for target in names)


def test_a_rank_killed_while_writing_leaves_the_older_checkpoint_as_the_last(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="rank 1 died of SIGKILL"):
        launch_module(("checkpoint_ranks", "killed", str(tmp_path)), 2, SECONDS)
    found = latest(tmp_path)
    assert found is not None and found.name == "step-00000001"


def test_a_batch_of_another_size_goes_on_at_the_row_that_comes_next() -> None:
    eight = Progress(step=3, position=6, rows=8)
    assert eight.at(8) == eight
    assert eight.at(4) == Progress(step=3, position=12, rows=4)
    assert eight.at(16) == Progress(step=3, position=3, rows=16)
    assert Progress(step=3, position=6).at(4) == Progress(step=3, position=6, rows=4)
    with pytest.raises(UsageError, match=r"has read 48 rows, in batches of 8, .* batches of 5"):
        eight.at(5)


class Stepped(Numbers):
    """The same after a step of an optimizer."""

    def state_dict(self) -> State:
        return {**super().state_dict(), "optimizer": {self.name: {"step": torch.zeros(())}}}


def test_a_checkpoint_whose_model_has_weights_that_the_plans_ties_is_of_another_model(
    world: World, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, world, fingerprint="f")
    checkpoints.save(Both(), Progress(step=1, position=1))
    with pytest.raises(StalePlanError, match=r"is of another model than the plan's \(the model has no head\.weight\)"):
        checkpoints.resume(Stepped(0.0, "words.weight"))


class Both(Stepped):
    """Two such."""

    def __init__(self) -> None:
        super().__init__(0.0, "words.weight")

    def state_dict(self) -> State:
        other = Stepped(1.0, "head.weight").state_dict()
        return {
            kind: {**part, **cast(State, other[kind])}
            for kind, part in cast(dict[str, State], super().state_dict()).items()
        }


def test_only_an_incomplete_checkpoint_begins_anew_and_says_so(world: World, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, world, fingerprint="f")
    (checkpoints.save(Numbers(1.0), Progress(step=1, position=1)) / "complete.json").unlink()
    assert checkpoints.resume(Numbers(0.0)) is None
    assert "step-00000001 cannot be read: complete.json is missing" in checkpoints.notes[0]


def test_other_data_or_another_seed_is_told_as_a_run_goes_on(world: World, tmp_path: Path) -> None:
    saved = Progress(step=2, position=2, rows=6, seed=0, samples=9)
    Checkpoints(tmp_path, world, fingerprint="f").save(Numbers(1.0), saved)
    found = Checkpoints(tmp_path, world, fingerprint="f").resume(Numbers(0.0))
    assert found == saved and found.in_another_order(seed=0, samples=9) == ()
    assert found.in_another_order(seed=0, samples=31) == (
        "the checkpoint's run read 9 rows with seed 0; this one 31 rows with seed 0: "
        "rows of this epoch come again or are left out",
    )
    assert "random batches with seed 3" in found.in_another_order(seed=3, samples=None)[0]
    assert Progress(step=2, position=2, rows=6).in_another_order(seed=5, samples=31) == ()


def test_another_learning_rate_is_told_as_a_run_goes_on(world: World, tmp_path: Path) -> None:
    short, longer = (LearningRate(peak=1e-3, steps=steps, decay="cosine") for steps in (60, 80))
    saved = Progress(step=60, position=60, rate=short.at(60))
    Checkpoints(tmp_path, world, fingerprint="f").save(Numbers(1.0), saved)
    found = Checkpoints(tmp_path, world, fingerprint="f").resume(Numbers(0.0))
    assert found is not None and found.at_another_rate(short.at(60)) == ()
    assert "a learning rate of 0; this one does with 0.000146" in found.at_another_rate(longer.at(60))[0]
    assert Progress(step=60, position=60).at_another_rate(longer.at(60)) == ()


def test_a_checkpoint_says_how_many_rows_a_batch_had(tmp_path: Path, world: World) -> None:
    Checkpoints(tmp_path, world, fingerprint="f").save(Numbers(1.0), Progress(step=2, position=2, rows=6))
    assert Checkpoints(tmp_path, world, fingerprint="f").resume(Numbers(0.0)) == Progress(step=2, position=2, rows=6)
