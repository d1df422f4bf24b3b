"""Shards of every format: equal samples, each once an epoch, resumed by other ranks; and what others read and write."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import BlockSpec, chain_graph
from placer.errors import UsageError
from placer.runtime.data import open_data
from placer.runtime.data.shards import ShardLoader, ShardSet, pack
from placer.runtime.data.shards.formats import FORMATS, FormatName, shard_format
from placer.runtime.data.shards.formats.crc32c import POLYNOMIAL, crc32c
from placer.runtime.data.shards.formats.example import decoded, encoded
from placer.runtime.data.shards.order import Place, ShardOrder
from placer.runtime.data.shards.single_files import SingleFiles
from shard_samples import COUNT, WIDTH, everything, key, packed, singles


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return singles(tmp_path)


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> FormatName:
    name: FormatName = request.param
    return name


def test_every_format_holds_the_same_samples(source: Path, format: FormatName) -> None:
    single, shards = SingleFiles(source), ShardSet(packed(source, format))
    wanted = [single.read(Place(number, 0)) for number in range(COUNT)]
    assert len(shards.counts) > 2
    read = everything(shards)
    assert Counter(one.pop("cls") for one in read) == {b"0": (COUNT + 1) // 2, b"1": COUNT // 2}
    assert read == wanted
    assert shards.key(Place(0, 1)) == "even/0002"
    assert shards.manifest.classes == ("even", "odd")


@pytest.mark.parametrize("size", [4_000, 9_000, 30_000, 10**6])
def test_no_shard_is_larger_than_was_asked_for(source: Path, format: FormatName, size: int) -> None:
    shards = ShardSet(packed(source, format, size))
    biggest = max(one.bytes for one in shards.manifest.shards)
    assert biggest <= -(-size // 10240) * 10240 if format == "tar" else size  # tar files are padded to 20 blocks
    assert sum(shards.counts) == COUNT


def test_the_same_files_give_the_same_bytes(source: Path, format: FormatName) -> None:
    first = packed(source, format)
    again = packed(source, format, into="again")
    assert {one.name: one.read_bytes() for one in first.iterdir()} == {
        one.name: one.read_bytes() for one in again.iterdir()
    }


def test_shards_without_manifest_and_indexes_are_read_alike(source: Path, format: FormatName) -> None:
    folder = packed(source, format)
    before = ShardSet(folder)
    read = everything(before)
    for path in folder.iterdir():
        if path.name.endswith((".json", ".index")):
            path.unlink()
    after = ShardSet(folder)
    assert (after.counts, everything(after)) == (before.counts, read)


@pytest.mark.in_turns
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_goes_on_in_the_middle_of_an_epoch_on_other_ranks(source: Path, format: FormatName, workers: int) -> None:
    folder = packed(source, format)
    order = ShardOrder(ShardSet(folder).counts, 0, window=4, hold_out=False)
    whole = [key(ShardSet(folder).read(order.training(index))) for index in range(COUNT)]
    assert sorted(whole) == sorted(f"sample {number}" for number in range(COUNT))
    two = [ShardLoader(folder, key, rows=6, rank=rank, ranks=2, window=4, workers=workers) for rank in range(2)]
    before = [one for loader in two for batch in islice(loader, 3) for one in batch]
    assert sorted(before) == sorted(whole[:18])
    after = []
    for rank in range(3):
        loader = ShardLoader(str(folder), key, rows=COUNT - 18, rank=rank, ranks=3, window=4, workers=workers)
        loader.load_state_dict(two[1].state_dict())
        after += next(iter(loader))
    assert Counter(before + after) == Counter(whole)


def test_shards_are_a_models_inputs_in_the_same_order(source: Path, format: FormatName) -> None:
    """All samples in one shard: then the order is that of the single shard of any format."""
    graph = chain_graph((BlockSpec(),))
    data = open_data(str(packed(source, format, 10**7)), graph, rows=4, seed=5)
    tar = open_data(str(pack(source, source.parent / "one", shard_bytes=10**7).folder), graph, rows=4, seed=5)
    seen = [data.batch(step)["x"] for step in range(COUNT // 4)]
    assert len(set(torch.cat(seen)[:, 0].int().tolist())) == 4 * len(seen) - 1  # the last row is of the next epoch
    assert all(torch.equal(one, tar.batch(step)["x"]) for step, one in enumerate(seen))


def test_a_file_that_is_torn_or_another_is_refused(source: Path, format: FormatName) -> None:
    folder = packed(source, format)
    first = min(path for path in folder.iterdir() if path.name.startswith("shard-000000") and "index" not in path.name)
    content = first.read_bytes()
    first.write_bytes(content[:-700])
    with pytest.raises(UsageError, match="bytes, not the"):
        ShardSet(folder)
    for path in folder.iterdir():
        if path.name.endswith((".json", ".index")):
            path.unlink()
    first.write_bytes(content[:1030])
    with pytest.raises(UsageError, match=r"is cut off|cannot be read as"):
        ShardSet(folder)
    first.write_bytes(b"something else entirely" * 100)
    with pytest.raises(UsageError, match=r"cannot be read as"):
        ShardSet(folder)


def test_formats_are_not_mixed(source: Path) -> None:
    folder = packed(source, "tar")
    (folder / "shards.json").unlink()
    (folder / "more.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="holds shards of parquet and tar; give each format its own folder"):
        ShardSet(folder)


def test_a_schema_without_the_models_inputs_names_what_there_is(source: Path, format: FormatName) -> None:
    for path in source.rglob("*.x.npy"):
        path.unlink()
    with pytest.raises(UsageError, match=r"has the files cls, (note, )?txt; input x of the model needs one of x\.npy"):
        open_data(str(packed(source, format)), chain_graph((BlockSpec(),)), rows=4, seed=5)


def test_pyarrow_reads_our_files_and_we_read_those_of_others(source: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the format needs placer-planner[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(sorted(packed(source, "parquet").glob("*.parquet"))).to_pylist()
    assert sorted(row["txt"] for row in rows) == sorted(f"sample {number}".encode() for number in range(COUNT))
    assert {row["__key__"] for row in rows} == {f"{'odd' if n % 2 else 'even'}/{n:04d}" for n in range(COUNT)}
    theirs = source.parent / "theirs"
    theirs.mkdir()
    values = numpy.random.default_rng(0).random((30, WIDTH)).astype(numpy.float32)
    table = pyarrow.table(
        {
            "x": pyarrow.array(list(values)),
            "deep": [[[1, 2], [3, n]] for n in range(30)],
            "txt": [f"sample {n}" for n in range(30)],
            "when": pyarrow.array(list(range(30)), pyarrow.timestamp("s")),
        }
    )
    parquet.write_table(table, theirs / "part-0.parquet", row_group_size=7, compression="snappy")
    samples = ShardSet(theirs)
    assert (samples.counts, samples.kind, samples.key(Place(0, 8))) == ((30,), "parquet shards", "row 8")
    assert set(samples.read(Place(0, 8))) == {"x.npy", "deep.npy", "txt"}
    data = open_data(str(theirs), chain_graph((BlockSpec(),)), rows=4, seed=5)
    assert all(row.tolist() in values.tolist() for row in data.batch(0)["x"])
    parquet.write_table(pyarrow.table({"x": [[[1.0], [2.0, 3.0]]]}), theirs / "part-0.parquet")
    with pytest.raises(UsageError, match="x of row 0 has no shape"):
        ShardSet(theirs).read(Place(0, 0))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves its files open
def test_the_tfrecord_library_reads_our_files_and_we_read_those_it_writes(source: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord", reason="an independent reader of TFRecord files is not installed")
    folder = packed(source, "tfrecord")
    wanted = {"txt": "byte", "x.npy": "byte", "__key__": "byte"}

    def index(path: Path) -> str | None:
        """Our index; none for a single record, whose index that library does not read."""
        return f"{path}.index" if Path(f"{path}.index").read_text().count("\n") > 1 else None

    rows = [
        row
        for path in sorted(folder.glob("*.tfrecord"))
        for row in tfrecord.tfrecord_loader(str(path), index(path), wanted)
    ]
    assert sorted(bytes(row["txt"]) for row in rows) == sorted(f"sample {n}".encode() for n in range(COUNT))
    theirs = source.parent / "theirs"
    theirs.mkdir()
    writer = tfrecord.TFRecordWriter(str(theirs / "part.tfrecord"))
    for number in range(30):
        writer.write(
            {
                "x": ([number + 0.5] * WIDTH, "float"),
                "count": ([number, -number, 2**40], "int"),
                "txt": (f"sample {number}".encode(), "byte"),
            }
        )
    writer.close()
    samples = ShardSet(theirs)
    assert (samples.counts, samples.kind, samples.key(Place(0, 8))) == ((30,), "tfrecord shards", "record 8")
    files = samples.read(Place(0, 8))
    assert set(files) == {"x.flat.npy", "count.flat.npy", "txt"}
    assert numpy.load(io.BytesIO(files["count.flat.npy"])).tolist() == [8, -8, 2**40]
    data = open_data(str(theirs), chain_graph((BlockSpec(),)), rows=4, seed=5)
    assert all(set(row.tolist()) <= {n + 0.5 for n in range(30)} for row in data.batch(0)["x"])
    gc.collect()


def test_tensorflow_reads_our_records(source: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    paths = sorted(map(str, packed(source, "tfrecord").glob("*.tfrecord")))
    shape = {"txt": tf.io.FixedLenFeature([], tf.string)}
    texts = [tf.io.parse_single_example(one, shape)["txt"].numpy() for one in tf.data.TFRecordDataset(paths)]
    assert sorted(texts) == sorted(f"sample {n}".encode() for n in range(COUNT))


def test_a_changed_byte_of_a_record_is_seen(source: Path) -> None:
    folder = packed(source, "tfrecord")
    first = folder / "shard-000000.tfrecord"
    content = bytearray(first.read_bytes())
    content[40] ^= 1
    first.write_bytes(content)
    with pytest.raises(UsageError, match=r"record 0, at byte 0, has a wrong CRC; copy the file again"):
        ShardSet(folder).read(Place(0, 0))
    (folder / "shard-000000.tfrecord.index").write_text("0 many")
    with pytest.raises(UsageError, match=r"index is no index of a shard"):
        ShardSet(folder).read(Place(0, 0))


def bytewise(content: bytes) -> int:
    """CRC-32C bit by bit, as it is defined."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ POLYNOMIAL * (crc & 1)
    return crc ^ 0xFFFFFFFF


def test_a_known_crc() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


@settings(max_examples=30)
@given(st.integers(0, 3000), st.binary(min_size=1, max_size=40))
def test_crcs_are_those_of_the_definition(length: int, pattern: bytes) -> None:
    content = (pattern * (1 + length // len(pattern)))[:length]
    assert crc32c(content) == bytewise(content)


@given(st.text(), st.dictionaries(st.text(min_size=1).filter(lambda name: name != "__key__"), st.binary()))
def test_an_example_gives_the_files_that_were_put_in(key: str, files: dict[str, bytes]) -> None:
    assert decoded(encoded(key, files)) == (key, files)


@given(st.binary(max_size=60))
def test_what_is_no_example_is_refused_and_nothing_else(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        decoded(content)


def test_without_pyarrow_the_extra_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for ask in (
        lambda: pack(source, source.parent / "shards", shard_bytes=10**6, to="parquet"),
        lambda: shard_format("parquet"),
    ):
        with pytest.raises(UsageError, match=r"needs pyarrow.*pip install 'placer-planner\[data\]'"):
            ask()
    assert not (source.parent / "shards").exists()


def test_a_manifest_of_another_format_is_refused(source: Path) -> None:
    manifest = packed(source, "tar") / "shards.json"
    manifest.write_text(manifest.read_text().replace('"tar"', '"arrow"'))
    with pytest.raises(UsageError, match=r"shards\.json is no manifest of shards: format"):
        ShardSet(manifest.parent)
