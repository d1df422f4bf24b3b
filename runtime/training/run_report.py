"""What a run was asked for, its learning rates among it, and what it gave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import TypeAdapter

from placer.errors import UsageError
from placer.io.files import read_text, write_text
from placer.plans.ledger import Ledger
from placer.plans.plan import SEEDS
from placer.runtime.data_parallel.synchrony import CHANGES, SYNCHRONOUS, Synchrony, SynchronyKind
from placer.runtime.distributed.backends import BackendName
from placer.runtime.distributed.world import TIMEOUT_SECONDS
from placer.runtime.measuring.expert_tokens import ExpertLayer

# Clocks of groups count nanoseconds in 63 bits: three hundred years with the time that a machine has been up.
MOST_SECONDS = 1e9
# Checkpoints that stay where nobody says how many.
KEPT = 2

Decay = Literal["constant", "linear", "cosine"]
EngineName = Literal["placer", "deepspeed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """How a plan is run. Paths are "" where nothing is to be written; see `data.open_data` for `data`.

    The learning rate is that of the plan's settings, warmed up and decayed as said here. `eval_every` and
    `checkpoint_every` count steps, 0 is never; a checkpoint folder without `checkpoint_every` gets one at the end.
    `checkpoint_async` writes them beside the steps that follow. `weights` is a Hugging Face folder to start from,
    `save_weights` a new one to end with, `save_expert_loads` a file for the tokens that each expert got, as
    `--expert-loads` takes it. `engine` is what runs the plan: placer's own, or DeepSpeed's (it saves nothing, and only
    seconds are measured). `compile` is the backend of torch.compile that runs the blocks, "" for op by op.
    `backend` is what ranks communicate by, where that is not what their devices usually do.
    `one_device` repeats the run's steps on one device and reports its losses.
    `report` is where the RunReport goes. `synchrony` with its number (`average_every` or `staleness`) is how replicas
    keep together, `own_loss` whether each tells the loss of its own rows (see `synchrony`): all but the default change
    the mathematics, so neither `one_device` nor another engine goes with them.
    """

    plan_path: str = "plan.json"
    engine: EngineName = "placer"
    backend: BackendName = "auto"
    compile: str = ""
    steps: int = 10
    data: str = "synthetic"
    tokenizer: str = ""
    seed: int = 0
    decay: Decay = "constant"
    warmup_steps: int = 0
    final_rate: float = 0.0
    eval_every: int = 0
    eval_batches: int = 1
    log: str = ""
    tensorboard: str = ""
    checkpoint: str = ""
    checkpoint_every: int = 0
    checkpoint_async: bool = False
    keep: int = KEPT
    weights: str = ""
    save_weights: str = ""
    save_expert_loads: str = ""
    report: str = ""
    one_device: bool = False
    synchrony: SynchronyKind = "synchronous"
    average_every: int | None = None
    staleness: int | None = None
    own_loss: bool = False
    timeout_seconds: float = TIMEOUT_SECONDS
    progress: bool = True

    def __post_init__(self) -> None:
        if self.seed not in SEEDS:
            raise UsageError(f"the seed is {self.seed}; give one from {SEEDS.start} to {SEEDS.stop - 1}")
        if self.steps < 1:
            raise UsageError(f"{self.steps} steps were asked for; give at least 1")
        if min(self.eval_every, self.checkpoint_every) < 0 or min(self.eval_batches, self.keep) < 1:
            raise UsageError(
                "intervals are 0 (never) or more steps, eval_batches and keep at least 1; give such numbers"
            )
        self.rates(1.0)
        self._require_read()
        self._require_engine()
        if not 0 < self.timeout_seconds <= MOST_SECONDS:
            raise UsageError(
                f"the timeout is {self.timeout_seconds} s; give seconds above 0, of at most {MOST_SECONDS:g}"
            )

    def _require_read(self) -> None:
        """Raise UsageError for an option of what is not asked for, so that nothing would read it."""
        if not self.checkpoint:
            folderless = {
                "--checkpoint-every": self.checkpoint_every, "--checkpoint-async": self.checkpoint_async,
                "--keep": self.keep != KEPT,
            }  # fmt: skip
            for option in (option for option, given in folderless.items() if given):
                raise UsageError(f"{option} needs a folder; give it with --checkpoint")
        if self.tokenizer and self.data == "synthetic":
            raise UsageError(
                f"--tokenizer {self.tokenizer} was given with synthetic data, which holds no text; give --data with a "
                "folder of text or stdlib, or leave it out"
            )
        if self.eval_batches != 1 and not self.eval_every:
            raise UsageError(
                f"--eval-batches {self.eval_batches} was given and no evaluation was asked for; give --eval-every with "
                "a number of steps, or leave it out"
            )
        if self.final_rate and self.decay == "constant":
            raise UsageError(
                f"--final-rate {self.final_rate:g} was given with --lr-schedule constant, which does not fall; give "
                "linear or cosine, or leave it out"
            )

    def _require_engine(self) -> None:
        """Raise UsageError for what is done by placer's own engine alone, and asked of another or of one device."""
        if self.kept_together.relaxed and (self.one_device or self.engine != "placer"):
            asked = "the losses of one device were" if self.one_device else f"--engine {self.engine} was"
            raise UsageError(
                f"{asked} asked for with --synchrony {self.synchrony}, which {CHANGES} "
                "and is done by placer's own engine; leave one of them out"
            )
        if self.engine == "placer":
            return
        if self.checkpoint or self.save_weights:
            raise UsageError(
                f"a checkpoint or weights were asked for with --engine {self.engine}, which keeps its state in its own "
                "way; leave --checkpoint and --save-weights out, or run with --engine placer"
            )
        unknown = {
            "--compile": (self.compile, "whose own modules it does not know"),
            f"--backend {self.backend}": (self.backend != "auto", "which makes groups of its own"),
            "--save-expert-loads": (self.save_expert_loads, "whose experts nobody counts"),
        }
        for option, (given, why) in unknown.items():
            if given:
                raise UsageError(
                    f"{option} was asked for with --engine {self.engine}, {why}; leave it out, or run with "
                    "--engine placer"
                )

    def rates(self, peak: float) -> LearningRate:
        """The learning rate of each step. Raises UsageError where the warmup or its end cannot be."""
        return LearningRate(
            peak=peak, steps=self.steps, decay=self.decay, warmup_steps=self.warmup_steps, final=self.final_rate
        )

    @property
    def kept_together(self) -> Synchrony:
        """How replicas keep together. Raises UsageError for a number that does not go with the kind."""
        return Synchrony(
            kind=self.synchrony, average_every=self.average_every, staleness=self.staleness, own_loss=self.own_loss
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The learning rate of each step, `peak` times a factor: linear warmup over `warmup_steps`, then `decay` down to
    `final` at step `steps`.

    warmup      (step + 1) / warmup_steps                        for step < warmup_steps
    constant    1
    linear      1 - (1 - final) * t                              t = share of the remaining steps that are done
    cosine      final + (1 - final) * (1 + cos(pi * t)) / 2
    """

    peak: float
    steps: int
    decay: Decay = "constant"
    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.decay not in ("constant", "linear", "cosine"):
            raise UsageError(f"there is no learning-rate schedule {self.decay!r}; known: constant, linear, cosine")
        if not 0 <= self.warmup_steps <= self.steps:
            raise UsageError(
                f"{self.warmup_steps} warmup steps do not fit into {self.steps} steps; give a number from 0 to that"
            )
        if not 0 <= self.final <= 1:
            raise UsageError(f"the final learning rate is {self.final} of the peak; give a share from 0 to 1")

    def at(self, step: int) -> float:
        """The rate of step `step`, counted from 0; after the last step it stays where it ended."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.peak * self._factor(min(1.0, self._done(step)))

    def _done(self, step: int) -> float:
        left = self.steps - self.warmup_steps
        return (step - self.warmup_steps) / left if left else 1.0

    def _factor(self, done: float) -> float:
        if self.decay == "linear":
            return 1 - (1 - self.final) * done
        if self.decay == "cosine":
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The loss on held-out data after `step` steps."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run: loss and seconds of each step from `first_step` on, and what was predicted beside what was measured.

    `checkpoint` and `weights` are where those were saved, "" where they were not. `measured` is None where the run was
    too short to measure (it leaves out the first steps, which set up buffers), or another engine than placer's ran it.
    `backend` is what was asked for: seconds are predicted of the usual ones. `compile` is the backend that compiled the
    blocks. `experts` are the tokens of every layer's experts over the run. `synchrony` prints as a warning where it
    changes the mathematics; `predicted` is of the synchronous run.
    """

    ranks: int
    data: str
    first_step: int
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    rows: int
    tokens_per_row: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    predicted: Ledger | None = None
    measured: Ledger | None = None
    one_device_losses: tuple[float, ...] = ()
    checkpoint: str = ""
    weights: str = ""
    engine: EngineName = "placer"
    backend: BackendName = "auto"
    compile: str = ""
    synchrony: Synchrony = SYNCHRONOUS
    experts: tuple[ExpertLayer, ...] = ()

    @property
    def median_step_seconds(self) -> float:
        """Of the steps after the first two where there are more; 0 where no step was left to do."""
        steady = self.step_seconds[2:] or self.step_seconds
        return median(steady) if steady else 0.0

    @property
    def rows_per_second(self) -> float | None:
        """At the median step; None where no step was left to do."""
        return self.rows / self.median_step_seconds if self.median_step_seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """As `rows_per_second`; None also where the model reads no text."""
        return self.rows_per_second * self.tokens_per_row if self.rows_per_second and self.tokens_per_row else None

    @property
    def mfu(self) -> float | None:
        """The share of the devices' rate that the model's FLOPs take at the median step; None where it is not known."""
        ledger = self.measured or self.predicted
        if ledger is None or not ledger.peak_flops or not self.median_step_seconds:
            return None
        return ledger.flops / self.median_step_seconds / ledger.peak_flops

    @property
    def one_device_difference(self) -> float | None:
        """The largest relative difference between the losses of this run and of one device; None where not asked."""
        pairs = zip(self.losses, self.one_device_losses, strict=False)
        return max((abs(a - b) / max(abs(b), 1e-300) for a, b in pairs), default=None)

    def to_json(self) -> str:
        """As JSON; `from_json` reads it back equal."""
        return REPORT.dump_json(self, indent=1).decode()

    def save(self, path: str | Path) -> None:
        """Write it atomically."""
        write_text(path, self.to_json())

    @staticmethod
    def load(path: str | Path) -> RunReport:
        """Read what `save` wrote."""
        return REPORT.validate_json(read_text(path, "the report of the run"))


REPORT: TypeAdapter[RunReport] = TypeAdapter(RunReport)
