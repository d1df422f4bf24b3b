"""Data-parallel training by engines other than torch's: placer, DeepSpeed's ZeRO, Horovod.

placer's ranks are forked and know the plan and its capture (`prepared`), which take seconds.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from placer import tracer
from placer.cluster.cluster import Cluster, Curve, Device, Link, Node
from placer.plans.plan import Plan, Stage
from placer.plans.settings import RunSettings
from placer.runtime.bench.parallel.models import MOMENTUM, PIXELS, RATES, Classifier, classifier
from placer.runtime.bench.parallel.torch_ways import Alone, sgd
from placer.runtime.bench.parallel.turn import Batch, Job
from placer.runtime.deepspeed.config import deepspeed
from placer.runtime.executor.load import load
from placer.runtime.stages.captured_model import CapturedModel, captured

_PREPARED: dict[tuple[str, int, int], tuple[Plan, CapturedModel]] = {}


def prepare(job: Job) -> None:
    """Capture the model and make the plan of replicas of it, for ranks that are forked from now on."""
    model, rows = classifier(job.model), job.global_rows
    shapes = {"images": ((rows, 3, PIXELS, PIXELS), "float32"), "labels": ((rows,), "int64")}
    graph = tracer.capture(model, batch=shapes)
    plan = Plan(
        model=tracer.resolve(model).ref,
        graph=graph,
        cluster=_processes(job.ranks),
        settings=RunSettings(
            optimizer="sgd", learning_rate=RATES[job.model], momentum=MOMENTUM, weight_decay=0.0, clip_norm=None
        ),
        stages=(Stage(first=0, last=len(graph.blocks), devices=tuple(range(job.ranks))),),
        schedule="1f1b",
        microbatches=(rows,),
    )  # fmt: skip
    _PREPARED[_key(job)] = plan, captured(plan, model)


class Placer:
    """A plan of replicas on placer's own engine."""

    def __init__(self, job: Job, rank: int) -> None:
        plan, capture = _PREPARED[_key(job)]
        self.executor = load(plan, model=classifier(job.model), capture=capture, checked=True)

    def step(self, batch: Batch) -> float:
        """The loss of the global batch."""
        return self.executor.step(batch)

    def weights(self) -> dict[str, torch.Tensor]:
        """Whole, by the model's own names."""
        return self.executor.full_state_dict()


class _Zero(Alone):
    """DeepSpeed's engine around the model."""

    stage = 1

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        super().__init__(job, rank)

    def wrap(self, model: Classifier) -> nn.Module:
        """The engine; it makes the step as well."""
        job = self._job
        config = {
            "train_micro_batch_size_per_gpu": job.rows,
            "train_batch_size": job.global_rows,
            "gradient_clipping": 0.0,  # left out, DeepSpeed 0.19 clips at a norm of 1
            "zero_optimization": {"stage": self.stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 2**31,
        }
        self.engine: Any = deepspeed().initialize(
            model=model, optimizer=sgd(job.model, model.parameters()), config=config
        )[0]
        found: nn.Module = self.engine
        return found

    def step(self, batch: Batch) -> float:
        """By the engine's own backward and step."""
        own = slice(self.first, self.first + self.rows)
        loss: torch.Tensor = self.engine(batch["images"][own], batch["labels"][own])
        self.engine.backward(loss)
        self.engine.step()
        return float(loss.detach())


class Zero1(_Zero):
    """The optimizer's state divided."""

    stage = 1


class Zero2(_Zero):
    """The optimizer's state and gradients divided."""

    stage = 2


class Horovod(Alone):
    """Gradients averaged by Horovod's background thread, fused as they come."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        hvd = importlib.import_module("horovod.torch")
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named_parameters=self.model.named_parameters())


def _key(job: Job) -> tuple[str, int, int]:
    return job.model, job.ranks, job.rows


def _processes(ranks: int) -> Cluster:
    """This machine as processes; the rates are made up and decide nothing here."""
    cpu = Device(
        name="process", backend="cpu", memory_bytes=2**36, memory_bandwidth=1e10, rates=(("float32", 1e10),),
        launch_seconds=1e-6, curve=Curve(points=((1.0, 1.0),)),
    )  # fmt: skip
    link = Link(name="loopback", latency_seconds=1e-5, bandwidth=1e9)
    return Cluster(name="processes", groups=((Node(name="here", devices=((cpu, ranks),), link=link), 1),))
