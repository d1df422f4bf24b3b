"""The package deepspeed, imported when it is first needed: it is an extra, and looks for compilers as it loads."""

from __future__ import annotations

import logging
import os
import warnings
from functools import cache
from typing import Any

import torch

from placer.extras import require_extra


@cache
def deepspeed() -> Any:
    """The package. Raises UsageError where it is not installed."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    found = require_extra("deepspeed", "deepspeed")
    # It would compile its own collectives over shared memory, where a killed run can leave a lock that hangs the next.
    found.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed 0.19 calls torch 2.13's collectives by their old names, at every step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)
    # It says at INFO how it is configured, on every rank.
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return found
