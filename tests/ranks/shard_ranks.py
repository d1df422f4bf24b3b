"""A rank that trains on shards: it notes each sample it is given, saves the loader's state, and may die on the way.

    python -m shard_ranks FOLDER NOTES ROWS RANK RANKS WORKERS STEPS

Notes are lines "sample" under the number of samples seen before their batch. It begins with the state in begin.json,
where there is one, and saves its own as state.json every second step. The rank kills itself by SIGKILL within step
STEPS; at 0 it never does, and ends with the epoch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from placer.io.files import write_text
from placer.runtime.data.shards import ShardLoader


def key(files: dict[str, bytes]) -> str:
    return files["txt"].decode()


def main(folder: str, notes: str, rows: int, rank: int, ranks: int, workers: int, steps: int) -> None:
    loader = ShardLoader(Path(folder), key, rows=rows, rank=rank, ranks=ranks, seed=3, workers=workers, window=4)
    begin, saved = Path(notes) / "begin.json", Path(notes) / "state.json"
    if begin.exists():
        loader.load_state_dict(json.loads(begin.read_text()))
    before = loader.seen
    for step, batch in enumerate(loader, 1):
        left = loader.order.trained - before
        given = batch[: len(range((rank - before) % ranks, min(rows, left), ranks))]  # the rest is of the next epoch
        with (Path(notes) / f"{before:05d}-{rank}-of-{ranks}").open("w") as file:
            file.write("\n".join(given))
        if step == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and step % 2 == 0:
            write_text(saved, json.dumps(loader.state_dict()))
        before = loader.seen
        if before >= loader.order.trained:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:8]))
