"""One deed beside the steps that follow: in a thread of its own, its failure kept for whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Beside:
    """At most one deed at a time. It ends with the process, finished or not."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None

    def start(self, deed: Callable[[], object]) -> None:
        """Begin `deed` when the one before has ended. Raises what that one failed with."""
        self.finish()
        self._thread = threading.Thread(target=self._run, args=(deed,), daemon=True, name="placer-beside")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the end. Raises what it failed with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.require_no_failure()

    def require_no_failure(self) -> None:
        """Raise what the deed has failed with so far, once."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _run(self, deed: Callable[[], object]) -> None:
        try:
            deed()
        except Exception as error:  # also of communication: who asks names the rank that caused it
            self._failed = error
