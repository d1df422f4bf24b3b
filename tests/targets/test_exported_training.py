"""Exported files train: DeepSpeed and accelerate configured by them lose what `placer execute` loses, step for step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from exported_ranks import STEPS
from layout_plans import drawn

from placer.cli import main
from placer.plans.plan import Plan
from placer.runtime.distributed.launch import launch
from placer.targets.frameworks.export import export_plan, inexpressible

pytestmark = pytest.mark.in_turns

CHECKOUT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true",
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/tests/targets",
}  # fmt: skip
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ROWS, LENGTH, SEQUENCES = 8, 16, 64
SECONDS = 1800.0


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of two layers as the Hub has them, and rows of tokens."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "weights")
    ids = numpy.random.default_rng(1).integers(0, 96, (SEQUENCES, LENGTH))
    (folder / "data").mkdir()
    for name in ("input_ids", "labels"):
        numpy.save(folder / "data" / f"{name}.npy", ids)
    return folder


def run(folder: Path, *words: str) -> None:
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def command(*words: str) -> None:
    """A command that starts no ranks, in this process: to import torch once more takes longer than it does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["placer", *words])
        try:
            main()
        except SystemExit as ended:
            assert not ended.code


def trained(folder: Path, model_and_data: Path, target: str, *pins: str) -> tuple[list[float], list[float]]:
    """Losses of the target, and of `placer execute`: same plan, same weights, same rows."""
    for name in ("weights", "data"):
        shutil.copytree(model_and_data / name, folder / name)
    asked = [word for pin in pins for word in ("--pin", pin)]
    batch = ("--batch", f"{ROWS}x{LENGTH}")
    asked += ["--cluster", "localx2", "--for", target, *batch, "-o", "plan.json"]
    command("plan", "weights/config.json", *asked)
    file = {"deepspeed": "ds.json", "accelerate": "accelerate.yaml"}[target]
    command("export", "plan.json", "--to", target, "-o", file)
    asked = ["--steps", str(STEPS), "--weights", "weights", "--data", "data", "--report", "run.json"]
    launch("plan.json", asked, 2, SECONDS)
    if target == "accelerate":  # as the file's own notes say
        said = next(line for line in (folder / file).read_text().splitlines() if "torchrun" in line)
        assert "ACCELERATE_USE_CPU=true torchrun --nproc-per-node 2 " in said
    run(folder, *TORCHRUN, "-m", "exported_ranks", target, str(folder))
    return json.loads((folder / f"{target}.json").read_text()), json.loads((folder / "run.json").read_text())["losses"]


@pytest.mark.parametrize(("target", "pins"), [
    ("deepspeed", ("data=2", "shard=optimizer", "microbatches=2")),
    ("deepspeed", ("data=2", "shard=parameters", "microbatches=1", "recompute=no")),
    ("accelerate", ("data=2", "shard=none", "microbatches=2")),
])  # fmt: skip
def test_two_steps_lose_what_placer_execute_loses(
    target: str, pins: tuple[str, ...], model_and_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(target)
    monkeypatch.chdir(tmp_path)
    theirs, ours = trained(tmp_path, model_and_data, target, *pins)
    assert len(theirs) == len(ours) == STEPS
    assert ours[0] != ours[1]
    assert theirs == pytest.approx(ours, rel=1e-5)


def expressible() -> Plan:
    """A plan that transformers' Trainer can follow."""
    return next(plan for plan in drawn(20, precision="float32") if not inexpressible(plan, "transformers"))


def test_the_trainer_of_transformers_keeps_the_rate_of_the_plan() -> None:
    plan = expressible()
    said = json.loads(export_plan(plan, "transformers").text)["training_arguments"]
    arguments = transformers.TrainingArguments(**said, use_cpu=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    schedule = transformers.get_scheduler(
        arguments.lr_scheduler_type, optimizer, arguments.get_warmup_steps(STEPS), STEPS
    )
    for _ in range(STEPS):
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [plan.settings.learning_rate]


def test_what_the_trainer_of_transformers_does_not_decay_is_said() -> None:
    plan = expressible()
    decays = replace(plan, settings=replace(plan.settings, weight_decay=0.1))
    assert any("biases and norms" in note for note in export_plan(decays, "transformers").notes)
    keeps = replace(plan, settings=replace(plan.settings, weight_decay=0.0))
    assert not any("biases and norms" in note for note in export_plan(keeps, "transformers").notes)
