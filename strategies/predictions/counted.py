"""What of a ledger's bytes a row's measurement counts.

What is reserved is what each category had at its own peak: torch's allocator keeps the segments that it made, and large
blocks of an update are not put together of small ones of a backward (docs: notes/cuda.html, "Memory management"). What
is allocated is what is there at once. A device's own reading (nvidia-smi, a node's, or where nothing is said) counts
all: the context and what is reserved. The allocator's counts leave the context out, and have the workspaces of cuBLAS
in: torch allocates one for the thread that goes forward and one for that which goes backward
(aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`: 32 MiB since Hopper, before it 2 x 4 MiB and 8 x
16 KiB; with CUBLAS_WORKSPACE_CONFIG=:4096:8, as deterministic runs set it, 32 MiB), Transformer Engine one more (its
`get_cublas_workspace_size_bytes`: 32 MiB since Hopper, 4 MiB before).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from placer.plans.ledger import Ledger
from placer.plans.settings import MEGATRON_CORE
from placer.strategies.predictions.machines import chip_of
from placer.strategies.predictions.rows import Row
from placer.strategies.predictions.settings import settings_of

MIB = 2**20
SINCE_HOPPER, BEFORE = 32 * MIB, 8 * MIB + 128 * 1024
ENGINE_SINCE_HOPPER, ENGINE_BEFORE = 32 * MIB, 4 * MIB
HOPPER = re.compile(r"h\d|gh\d|g?b\d")
THREADS = 2  # one forward, one backward


def counted(row: Row) -> Callable[[Ledger], float]:
    """The bytes of a ledger that the row's measurement counts: the last position's alone where it says so."""
    kind = row.text("mem_kind").lower()
    whole = re.search(r"smi|read from node|per gpu|^gb$", kind) is not None
    reserved, beside = whole or "reserved" in kind, 0 if whole else workspaces(row)

    def bytes_of(ledger: Ledger) -> float:
        memory = ledger.memory[-1:] if "last rank" in kind else ledger.memory
        held = ((sum(each.categories.values()) if reserved else each.total, each.overhead) for each in memory)
        return float(max(size - (0 if whole else context) for size, context in held)) + beside

    return bytes_of


def workspaces(row: Row) -> int:
    """Bytes of cuBLAS's workspaces that torch's allocator counts."""
    new = HOPPER.match(chip_of(row) or "") is not None
    each = SINCE_HOPPER if new or "deterministic-mode" in row.text("notes") else BEFORE
    engine = settings_of(row).stack in MEGATRON_CORE
    return THREADS * each + engine * (ENGINE_SINCE_HOPPER if new else ENGINE_BEFORE)
