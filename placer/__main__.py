"""The command `placer`, also `python -m placer`: an interruption is said in a word from its first moment on."""

from __future__ import annotations

import sys

from placer.io.processes import collect_seldom

INTERRUPTED = 130  # 128 + SIGINT, as shells count it


def main() -> None:
    """Load the command line and run it; loading takes a second in which Ctrl-C is no error either."""
    collect_seldom()
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
