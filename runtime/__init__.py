"""Running plans on torch.distributed: `load` for people with their own loop, `execute` for the whole one, `verify`."""

from placer.runtime.assemble import load
from placer.runtime.executor import Executor

__all__ = ["Executor", "load"]
