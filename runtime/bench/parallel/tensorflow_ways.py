"""Data-parallel training by TensorFlow's strategies: the same graph as the other ways', its ops by TensorFlow.

    MirroredStrategy             one process, a logical device for each replica
    MultiWorkerMirroredStrategy  a process for each replica
    none                         each process its own rows, which communication is counted from

The model is exported by torch and carried out op by op, with weights as torch lays them out, so that losses can be
compared. Gradients are averaged by the strategy; the update is SGD with momentum as torch writes it.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

from placer.runtime.bench.parallel.models import MOMENTUM, RATES, classifier
from placer.runtime.bench.parallel.tensorflow_ops import Graph
from placer.runtime.bench.parallel.turn import Batch, Job


class _Tensorflow:
    """A trainer under a strategy. replicas: of this process."""

    def __init__(self, job: Job, rank: int, strategy: Any, replicas: int) -> None:
        self._tf: Any = importlib.import_module("tensorflow")
        self._strategy, self._replicas, self._rows = strategy, replicas, job.rows
        self._first = 0 if replicas > 1 else rank
        self._rate = RATES[job.model]
        model = classifier(job.model)
        self._graph = Graph.of(model, job.rows)
        self._begin = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
        with strategy.scope():
            self._variables = {name: self._tf.Variable(first) for name, first in self._begin.items()}
            self._momenta = {
                name: self._tf.Variable(self._tf.zeros_like(first), trainable=False)
                for name, first in self._begin.items()
            }
        self._step = self._tf.function(self._stepped, autograph=False)

    def step(self, batch: Batch) -> float:
        """The mean loss of the rows of this process."""
        images, labels = (self._distributed(batch[name].numpy()) for name in ("images", "labels"))
        return float(self._step(images, labels))

    def weights(self) -> dict[str, torch.Tensor]:
        """As this process holds them."""
        return {name: torch.from_numpy(one.numpy().copy()) for name, one in self._variables.items()}

    def begin_again(self) -> None:
        """With the first weights and no momentum."""
        for name, first in self._begin.items():
            self._variables[name].assign(first)
            self._momenta[name].assign(self._tf.zeros_like(first))

    def _distributed(self, whole: Any) -> Any:
        def own(context: Any) -> Any:
            # Replicas are counted over all processes; without a strategy each process is replica 0.
            number = context.replica_id_in_sync_group if self._replicas > 1 else self._first
            return self._tf.constant(whole[number * self._rows : (number + 1) * self._rows])

        return self._strategy.experimental_distribute_values_from_function(own)

    def _stepped(self, images: Any, labels: Any) -> Any:
        losses = self._strategy.run(self._replica, args=(images, labels))
        each = self._strategy.experimental_local_results(losses)
        return self._tf.add_n(list(each)) / len(each)

    def _replica(self, images: Any, labels: Any) -> Any:
        with self._tf.GradientTape() as tape:
            loss = self._graph.run(self._tf, self._variables, images, labels)
        names = list(self._variables)
        gradients = tape.gradient(loss, [self._variables[name] for name in names], unconnected_gradients="zero")
        context = self._tf.distribute.get_replica_context()
        averaged = context.all_reduce(self._tf.distribute.ReduceOp.MEAN, gradients)
        context.merge_call(self._updated, args=(dict(zip(names, averaged, strict=True)),))
        return loss

    def _updated(self, strategy: Any, gradients: dict[str, Any]) -> None:
        for name, gradient in gradients.items():
            strategy.extended.update(
                self._variables[name], self._moved, args=(self._momenta[name], gradient), group=True
            )

    def _moved(self, variable: Any, momentum: Any, gradient: Any) -> Any:
        with self._tf.control_dependencies([momentum.assign(MOMENTUM * momentum + gradient)]):
            return variable.assign_sub(self._rate * momentum)


def mirrored(job: Job, rank: int) -> _Tensorflow:
    """All replicas in this process."""
    return _kept("mirrored", job, rank, job.ranks)


def multi_worker(job: Job, rank: int) -> _Tensorflow:
    """One replica in each process."""
    return _kept("multi worker", job, rank, 1)


def unreduced(job: Job, rank: int) -> _Tensorflow:
    """No strategy."""
    return _kept("", job, rank, 1)


def _kept(kind: str, job: Job, rank: int, replicas: int) -> _Tensorflow:
    """The trainer of an earlier turn with its first weights again: tracing the step takes TensorFlow long.

    Of other models none is kept.
    """
    key = (kind, job.model, job.rows, job.ranks)
    if key in _LAST:
        _LAST[key].begin_again()
    else:
        _LAST.clear()
        _LAST[key] = _Tensorflow(job, rank, _strategy(kind, replicas), replicas)
    return _LAST[key]


@cache
def _strategy(kind: str, replicas: int) -> Any:
    """Made once in a process: another one would want another world."""
    distribute: Any = importlib.import_module("tensorflow").distribute
    if kind == "mirrored":
        return distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    return distribute.MultiWorkerMirroredStrategy() if kind else distribute.get_strategy()


_LAST: dict[tuple[str, str, int, int], _Tensorflow] = {}
