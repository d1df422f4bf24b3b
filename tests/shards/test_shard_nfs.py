"""Shards on a mounted NFS server give what the server's own folder gives."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from graphs import BlockSpec, chain_graph
from nfs_machine import missing, served
from placer.errors import UsageError
from placer.runtime.data import open_data
from placer.runtime.data.shards import ShardLoader, ShardSet
from placer.runtime.data.shards.formats import FORMATS, FormatName
from shard_samples import COUNT, everything, key, packed, singles

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def folders() -> Iterator[tuple[Path, Path]]:
    """Shards of each format in a folder that a server exports, and where they are mounted."""
    made = Path(tempfile.mkdtemp(prefix="nfs"))
    try:
        for format in FORMATS:
            packed(singles(made / "export"), format)
        with served(made / "export", made) as mount:
            yield made / "export", mount
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("format", FORMATS)
def test_samples_over_nfs_are_those_of_the_folder(folders: tuple[Path, Path], format: FormatName) -> None:
    here, there = (folder / format for folder in folders)
    assert os.stat(here).st_dev != os.stat(there).st_dev and os.path.ismount(there.parent)
    near, away = ShardSet(here), ShardSet(there)
    assert away.manifest == near.manifest and everything(away) == everything(near)
    graph = chain_graph((BlockSpec(),))
    one, other = (open_data(str(where), graph, rows=4, seed=5) for where in (here, there))
    assert all(torch.equal(one.batch(step)["x"], other.batch(step)["x"]) for step in range(3))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_over_nfs_goes_on_on_other_ranks(folders: tuple[Path, Path], workers: int) -> None:
    shards = folders[1] / "tar"
    two = [ShardLoader(shards, key, rows=6, rank=rank, ranks=2, window=4, workers=workers) for rank in range(2)]
    given = [one for loader in two for batch in islice(loader, 3) for one in batch]
    for rank in range(3):
        loader = ShardLoader(shards, key, rows=COUNT - 18, rank=rank, ranks=3, window=4, workers=workers)
        loader.load_state_dict(two[0].state_dict())
        given += next(iter(loader))
    assert Counter(given) == Counter(f"sample {number}" for number in range(COUNT))


def test_a_mount_that_is_gone_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    export = tmp_path / "export"
    packed(singles(export), "tar")
    with served(export, tmp_path) as mount:
        samples = ShardSet(mount / "tar")
        assert len(everything(samples)) == COUNT
    with pytest.raises(UsageError, match="tar"):
        everything(ShardSet(mount / "tar"))
