"""The command `placer`, also `python -m placer`: an interruption is said in a word from its first moment on."""

from __future__ import annotations

import gc
import sys

# Objects made between two collections of garbage (Python's own: 700). Libraries, graphs and searches make millions that
# stay; walking them again and again takes a fifth of a command's time.
COLLECT_EVERY = 100_000

INTERRUPTED = 130  # 128 + SIGINT, as shells count it


def main() -> None:
    """Load the command line and run it; loading takes a second in which Ctrl-C is no error either."""
    gc.set_threshold(COLLECT_EVERY)
    try:
        from placer.cli import main as run  # after the first moment: this import is what takes the second

        run()
    except KeyboardInterrupt:
        _say()
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer ends an interrupted command without a word
            _say()
        raise


def _say() -> None:
    print("placer: interrupted", file=sys.stderr)


if __name__ == "__main__":
    main()
