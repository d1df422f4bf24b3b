"""Whether a run will be able to write what it is asked for: known before the first rank joins, not after the last."""

from __future__ import annotations

from placer.extras import require_extra
from placer.files import require_folder, require_writable
from placer.runtime.export_weights import require_new
from placer.runtime.run_report import ExecuteOptions


def require_outputs(options: ExecuteOptions) -> None:
    """Raise UsageError for files and folders that cannot be written, and for TensorBoard where it is not installed."""
    for path in filter(None, (options.report, options.log, options.save_expert_loads)):
        require_writable(path)
    for folder in filter(None, (options.checkpoint, options.tensorboard)):
        require_folder(folder)
    if options.save_weights:
        require_folder(options.save_weights)
        require_new(options.save_weights)
    if options.tensorboard:
        require_extra("report", "tensorboard")
