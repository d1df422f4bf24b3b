"""Ledger: seconds and bytes of one step, itemised; predicted and measured ones are of this one type."""

from __future__ import annotations

from dataclasses import dataclass, fields

from placer.io.bounds import Amount, AmountAboveZero, Count, CountFromOne, Finite, Flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of one step on its slowest rank, by cause; they add up to `total`.

    `communication` is exposed point-to-point time, `reduction` exposed gradient and parameter collectives, `bubble`
    waiting for other stages, `data` waiting for input, `other` what a measurement could not attribute.
    """

    forward: Amount = 0.0
    backward: Amount = 0.0
    recompute: Amount = 0.0
    communication: Amount = 0.0
    reduction: Amount = 0.0
    bubble: Amount = 0.0
    optimizer: Amount = 0.0
    data: Amount = 0.0
    other: Finite = 0.0

    @property
    def total(self) -> float:
        """The step."""
        return (
            self.forward + self.backward + self.recompute + self.communication + self.reduction
            + self.bubble + self.optimizer + self.data + self.other
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """Peak bytes of one device by category.

    `activations` are what autograd keeps alive under the schedule, `workspace` temporaries of the largest op,
    `communication` buffers of collectives and messages, `overhead` context and allocator slack. Each is at its own
    peak; as these do not come together, `at_once` is less than their sum (0: not known, then the sum stands for it).
    """

    parameters: Count = 0
    gradients: Count = 0
    optimizer: Count = 0
    activations: Count = 0
    buffers: Count = 0
    workspace: Count = 0
    communication: Count = 0
    overhead: Count = 0
    at_once: Count = 0

    @property
    def categories(self) -> dict[str, int]:
        """Bytes by category."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "at_once"}

    @property
    def total(self) -> int:
        """Peak bytes."""
        return self.at_once or sum(self.categories.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One step. `memory` has one entry per pipeline position (the devices of a position hold the same).

    `flops` are the model's forward and backward FLOPs of the whole batch (recompute not counted), `peak_flops` the
    summed rate of the devices used, so that MFU = flops / (step_seconds * peak_flops).
    """

    step_seconds: AmountAboveZero
    seconds: Seconds
    memory: tuple[MemoryBytes, ...]
    rows: CountFromOne
    flops: Flops
    peak_flops: Amount
    sent_bytes: Count = 0
    reduced_bytes: Count = 0

    @property
    def rows_per_second(self) -> float:
        """Batch rows per second of the whole plan."""
        return self.rows / self.step_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, 0 to 1; 0 where the peak rate is not known."""
        return self.flops / (self.step_seconds * self.peak_flops) if self.peak_flops else 0.0

    @property
    def peak_memory(self) -> int:
        """Bytes on the fullest device."""
        return max((entry.total for entry in self.memory), default=0)
