"""Running plans on torch.distributed: `load` for people with their own loop, `execute` for the whole one, `verify`."""

from placer.runtime.assemble import load
from placer.runtime.executor import Executor
from placer.runtime.verifying import VerifyReport, verify

__all__ = ["Executor", "VerifyReport", "load", "verify"]
