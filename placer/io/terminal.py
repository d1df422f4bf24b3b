"""Text from files, models and machines on its way to a terminal: what a terminal would obey is shown, not sent."""

from __future__ import annotations

import io
import unicodedata
from typing import TextIO

# What takes back a line on a terminal: placer's own where a write begins with it.
LINE_AGAIN = "\r\x1b[K"


def harmless(text: str) -> str:
    """`text` with control, format and half characters written as Python writes them: `\\x1b[2J`."""
    if text.isprintable():
        return text
    return "".join(one if _shown(one) else one.encode("unicode_escape").decode("ascii") for one in text)


def _shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


class HarmlessStream(io.TextIOBase):
    """A stream to which nothing but harmless text gets."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str, /) -> int:
        """Write all of it; a mark that takes back a line stays where it comes first."""
        start = LINE_AGAIN if text.startswith(LINE_AGAIN) else ""
        self._stream.write(start + harmless(text.removeprefix(start)))
        return len(text)

    def flush(self) -> None:
        """As the stream does."""
        self._stream.flush()

    def isatty(self) -> bool:
        """As the stream says."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """As the stream says."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of a stream it is never None
        """As the stream says."""
        return self._stream.encoding
