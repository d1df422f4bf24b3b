"""What torchtitan's files start from in tests: its models import triton, which needs a GPU; its sections do not."""

from __future__ import annotations

import importlib
from types import SimpleNamespace


def build() -> SimpleNamespace:
    """The sections that placer's function replaces, the training one torchtitan's own."""
    return SimpleNamespace(training=importlib.import_module("torchtitan.config").TrainingConfig())
