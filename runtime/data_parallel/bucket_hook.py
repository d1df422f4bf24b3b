"""DDP's communication hook: a bucket of gradients is summed, not averaged, by gloo's or NCCL's own all_reduce or in the
way that the plan says, beside the backward.

A way of several steps goes on in a thread of its own, bucket after bucket, so that all ranks come to its steps in the
same order. Where ops are watched, which is done thread by thread, it is gone through at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.utils._python_dispatch import _get_current_dispatch_mode

from placer.program.instructions import Collective
from placer.program.mixed_allreduce import SumRoute
from placer.program.reductions import ServerRoute
from placer.runtime.distributed.tensors import GroupOf, has_gaps, sum_over, summed_in
from placer.runtime.observer import Observer

Summed = torch.futures.Future[torch.Tensor]


@dataclass(kw_only=True, eq=False)
class BucketHook:
    """Sums over `ranks`. way: None where their library sums by itself. compressed: the 16 bits to sum in, None: as they
    are, and 16 bits in float32. earlier: what other microbatches added up, of which the next buckets take what is
    theirs. buckets: those it was last given, by number."""

    ranks: tuple[int, ...]
    way: SumRoute | ServerRoute | None
    group_of: GroupOf
    observer: Observer
    compressed: torch.dtype | None = None
    buckets: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict)
    earlier: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)

    @property
    def hook(self) -> Callable[[object, GradBucket], Summed]:
        """What DDP calls."""

        def hook(state: object, bucket: GradBucket) -> Summed:
            buffer = bucket.buffer()
            self.buckets[bucket.index()] = weakref.ref(buffer.untyped_storage())
            sent = buffer.to(self.compressed or summed_in(buffer.dtype))
            self._add_earlier(bucket, sent)
            self.observer.collective(
                Collective(
                    kind="all_reduce",
                    engine="ddp",
                    purpose="gradients",
                    ranks=self.ranks,
                    bytes=sent.numel() * sent.element_size(),
                    stage=0,
                    unit=f"bucket {bucket.index()}",
                    dtype=str(sent.dtype).removeprefix("torch."),
                    way=self.way,
                )
            )
            return self._summed(sent, buffer)

        # DDP compares the annotations themselves, which are text in this file.
        hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
        return hook

    def _add_earlier(self, bucket: GradBucket, sent: torch.Tensor) -> None:
        """Add what was put aside of the bucket's parameters."""
        if not self.earlier:
            return
        begin = bucket.buffer().storage_offset()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            found = self.earlier.pop(parameter, None)
            if found is not None:
                # DDP lays a gradient as its parameter (reducer.cpp, initialize_bucket_views), and shows it otherwise.
                laid = gradient if has_gaps(parameter) else parameter
                place = gradient.storage_offset() - begin
                sent.as_strided(laid.size(), laid.stride(), place).add_(found)

    def _summed(self, sent: torch.Tensor, buffer: torch.Tensor) -> Summed:
        """The sum of what is sent, in the bucket it came from."""
        if self.way is not None:
            return self._in_steps(sent, buffer, self.way)
        work = dist.all_reduce(sent, group=self.group_of(self.ranks), async_op=True)

        def reduced(future: torch.futures.Future[object]) -> torch.Tensor:
            future.value()  # raises what the all-reduce ended with
            return _in_place_of(buffer, sent)

        return cast(Summed, work.get_future().then(reduced))

    def _in_steps(self, sent: torch.Tensor, buffer: torch.Tensor, way: SumRoute | ServerRoute) -> Summed:
        found: Summed = torch.futures.Future()

        def sum_in_steps() -> torch.Tensor:
            sum_over(sent, way, self.ranks, dist.get_rank(), self.group_of)
            return _in_place_of(buffer, sent)

        def told(done: Future[torch.Tensor]) -> None:
            error = done.exception()
            if error is None:
                found.set_result(buffer)
            else:
                found.set_exception(error)  # type: ignore[arg-type]  # torch says that it takes any, and means errors

        if _get_current_dispatch_mode() is None:
            self._thread.submit(sum_in_steps).add_done_callback(told)
        else:
            found.set_result(sum_in_steps())
        return found

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """One, made when it is first needed."""
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="sums")


def _in_place_of(buffer: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
    """`buffer` with the sum: itself where nothing was cast."""
    return buffer if summed is buffer else buffer.copy_(summed)
