"""Running plans on torch.distributed: `load` for people with their own loop, `execute` for the whole one, `verify`."""

from placer.runtime.executor.executor import Executor
from placer.runtime.executor.load import load
from placer.runtime.verify.parity import verify
from placer.runtime.verify.report import VerifyReport

__all__ = ["Executor", "VerifyReport", "load", "verify"]
