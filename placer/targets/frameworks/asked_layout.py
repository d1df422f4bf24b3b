"""A layout that somebody wrote by hand for another framework, as pins that make it a plan.

The readers (`torchtitan_file`, `megatron_file`) give an `AskedLayout`; `pins(graph)` says it in the words of
`placer plan --pin`, block by block where the stages are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placer.errors import UsageError
from placer.graph import Graph
from placer.plans.plan import Recompute, ScheduleName, Sharding, recompute_word
from placer.plans.settings import Precision
from placer.targets.frameworks.layer_stack import LayerStack


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLayout:
    """What a file says; None and 0: it does not say.

    world: ranks, where the file fixes it. rows: of a global batch. micro_rows: of a microbatch on a device with rows of
    its own. data: ranks with rows of their own, those along expert among them. stages: layers of each stage in order.
    unread: what the file says that a plan has no words for.
    """

    framework: str
    pipeline: int = 1
    virtual: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int = 0
    rows: int = 0
    micro_rows: int = 0
    length: int = 0
    sharding: Sharding | None = None
    schedule: ScheduleName | None = None
    recompute: Recompute | None = None
    precision: Precision | None = None
    stages: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()

    def replicas(self, devices: int) -> int:
        """Replicas on so many devices. Raises UsageError where the degrees do not divide them."""
        each = self.pipeline * self.tensor * self.context * self.expert
        if self.data:
            if self.data % self.expert:
                raise UsageError(
                    f"the file's data degree {self.data} does not divide by its expert degree {self.expert}"
                )
            if self.data * each // self.expert != devices:
                raise UsageError(
                    f"the file's degrees are of {self.data * each // self.expert} devices, and the cluster has "
                    f"{devices}; give the cluster it is for"
                )
            return self.data // self.expert
        if devices % each:
            raise UsageError(
                f"pipeline {self.pipeline} x tensor {self.tensor} x context {self.context} x expert {self.expert} does "
                f"not divide the {devices} devices of the cluster; give the cluster the file is for"
            )
        return devices // each

    def pins(self, graph: Graph, devices: int) -> tuple[str, ...]:
        """The pins that make it a plan on so many devices. Raises UsageError where its stages are not the model's."""
        replicas = self.replicas(devices)
        found = [
            f"data={replicas}", f"pipeline={self.pipeline}", f"tensor={self.tensor}", f"sequence={self.context}",
            f"expert={self.expert}", "height=1", "width=1",
        ]  # fmt: skip
        if self.sharding is not None:
            found.append(f"shard={self.sharding if replicas > 1 else 'none'}")
        if self.pipeline > 1 and self.schedule is not None:
            found.append(f"schedule={self.schedule}")
        if self.recompute is not None:
            found.append(f"recompute={recompute_word(self.recompute)}")
        if self.micro_rows:
            found.append(f"microbatches={self._microbatches(graph.rows, replicas)}")
        return (*found, *self._stage_pins(graph))

    def _microbatches(self, rows: int, replicas: int) -> int:
        at_once = self.micro_rows * replicas * self.expert
        if rows % at_once:
            raise UsageError(
                f"{rows} rows of a step do not divide by {self.micro_rows} rows x {replicas * self.expert} devices, as "
                "the file has them; give the batch it is for, as in --batch"
            )
        return rows // at_once

    def _stage_pins(self, graph: Graph) -> Iterator[str]:
        if not self.stages:
            return
        stack = LayerStack.of(graph)
        if isinstance(stack, str):
            raise UsageError(f"{stack}, whose stages the file names; give the model it is for")
        if sum(self.stages) != stack.count:
            raise UsageError(
                f"the file's stages hold {sum(self.stages)} layers, and {graph.name} has {stack.count}; give the model "
                "it is for"
            )
        yield from _pinned(stack, self.stages)


def _pinned(stack: LayerStack, stages: Sequence[int]) -> Iterator[str]:
    """The first and the last layer of each stage in its stage."""
    layer = 0
    for number, count in enumerate(stages):
        for one in dict.fromkeys((layer, layer + count - 1) if count else ()):
            yield f"{stack.path}.{one}@stage={number}"
        layer += count
