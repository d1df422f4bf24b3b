"""Files of safetensors that are held to their checksums: only the bytes of what is read of them.

8 bytes: n    n bytes: JSON, name -> {"dtype", "shape", "data_offsets": [begin, end]}    the tensors' bytes
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

from placer.errors import UsageError
from placer.runtime.storage.checksums import NAME, Checksums, VerifiedFile, opened


class TensorFile:
    """Where the tensors of one file lie, and whether what lies there is what was written."""

    def __init__(self, file: VerifiedFile, begins: Mapping[str, tuple[int, int]]) -> None:
        self._file, self._places = file, begins

    @staticmethod
    def of(path: Path, sums: Mapping[str, Checksums]) -> TensorFile:
        """Of `path`, whose header is read. Raises UsageError where it is another than was written."""
        if path.name not in sums:
            raise UsageError(f"{path.name} has no checksum in {path.with_name(NAME)}; {_MEANT}")
        file = opened(path, sums[path.name])
        stream = io.BufferedReader(file)
        try:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(size, sums[path.name].bytes)))
        except UsageError as error:
            raise UsageError(f"{error}; {_MEANT}") from None
        finally:
            stream.detach()
        places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        return TensorFile(file, {name: (8 + size + begin, 8 + size + end) for name, (begin, end) in places.items()})

    def verify(self, name: str, first: int, last: int, rows: int) -> None:
        """Raise UsageError where rows `first` to `last` (exclusive) of the `rows` of a tensor have been changed."""
        begin, end = self._places[name]
        row = (end - begin) // max(1, rows)
        try:
            self._file.verify(begin + first * row, begin + last * row)
        except UsageError as error:
            raise UsageError(f"{error}; {_MEANT}") from None


_MEANT = f"where the change was meant, remove {NAME}: the weights are then read unchecked"
