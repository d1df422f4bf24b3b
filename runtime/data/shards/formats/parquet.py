"""Parquet files: a row is a sample, a column holds the file of one suffix, null where a sample has none.

What is written are binary columns and the samples' names (`__key__`), uncompressed, in row groups of about `GROUP`
bytes. What others wrote is read alike: binary and text are files called like the column; numbers, and lists of them of
one shape, are what `COLUMN.npy` would hold. Columns of other types are left out.

Reading goes by row groups. Those read last are kept, `KEPT_BYTES` of them in each process.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import BinaryIO

import numpy
import pyarrow
import pyarrow.parquet as parquet

from placer.errors import ExecutionError, PlacerError, UsageError
from placer.runtime.data.shards.folders import ShardFile
from placer.runtime.data.shards.folders.files import AHEAD, stream
from placer.runtime.data.shards.sample_files import Files

KEY = "__key__"
# Bytes of a row group: what is read for one sample where its group is not kept, yet much more than its header.
GROUP = 2**20
# Of each loading process. Reading a group again for each image of 110 kB took 0.4 ms of a core (our measurement,
# 25 Nov 2026), a quarter of decoding the image, so that keeping whole windows is not worth their gigabytes.
KEPT_BYTES = 128 * 2**20
# Of the format, measured with pyarrow 26: a cell's length and level; of a column its page's header and its entry in the
# footer, in which its name stands twice; of a file its schema.
CELL, COLUMN, FILE = 6, 160, 512


class ParquetFormat:
    """Parquet by pyarrow; the row groups read last are kept for all shards together."""

    suffix, index = ".parquet", ""

    def __init__(self) -> None:
        self._groups = RowGroups()

    def opened(self, file: ShardFile, index: str | None) -> ParquetShard:
        """A shard by its footer. Raises UsageError for what is no Parquet file, or cut off."""
        try:
            opened = parquet.ParquetFile(stream(file), pre_buffer=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise UsageError(f"{file.name} cannot be read as Parquet: {error}; copy it again, or pack again") from None
        return ParquetShard(file, opened, self._groups)

    def index_of(self, file: ShardFile) -> str:
        """The footer is the index."""
        return ""

    def overhead(self, columns: Sequence[str]) -> int:
        """Bytes of a file with one empty row group."""
        return FILE + _group_overhead(columns)

    def room(self, key: str, sizes: Sequence[tuple[str, int]], columns: Sequence[str]) -> int:
        """Its cells, and its share of the row group's own bytes."""
        cells = _bytes(key, sizes) + CELL * (1 + len(columns))
        return cells + -(-cells * _group_overhead(columns) // GROUP)

    def write(self, file: BinaryIO, samples: Iterable[tuple[str, Files]], columns: Sequence[str]) -> None:
        """Row groups that end with the sample that fills them."""
        schema = pyarrow.schema([(KEY, pyarrow.string()), *((name, pyarrow.binary()) for name in columns)])
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False}
        try:
            with parquet.ParquetWriter(file, schema, **plain) as writer:
                for group in _groups(samples):
                    cells = {KEY: [key for key, _ in group]}
                    made = {name: [files.get(name) for _, files in group] for name in columns}
                    writer.write_table(pyarrow.table(cells | made, schema=schema), row_group_size=len(group))
        except pyarrow.ArrowException as error:
            raise PlacerError(f"samples cannot be written as Parquet: {error}; pack them as tar") from None


class ParquetShard:
    """The rows of a Parquet file."""

    def __init__(self, file: ShardFile, opened: parquet.ParquetFile, groups: RowGroups) -> None:
        self._file, self._opened, self._groups = file, opened, groups
        metadata = opened.metadata
        self._ends = tuple(accumulate(metadata.row_group(one).num_rows for one in range(metadata.num_row_groups)))

    @property
    def count(self) -> int:
        """How many rows."""
        return self._ends[-1] if self._ends else 0

    def key(self, number: int) -> str:
        """The name of a sample, or the number of its row."""
        table, row = self._row(number)
        return str(table[KEY][row].as_py()) if KEY in table.column_names else f"row {number}"

    def read(self, number: int) -> Files:
        """The files of a row. Raises UsageError where its numbers have no shape."""
        table, row = self._row(number)
        found = Files()
        for field, column in zip(table.schema, table.columns, strict=True):
            cell = column[row]
            if field.name == KEY or not cell.is_valid:
                continue
            try:
                found |= _file(field.name, field.type, cell)
            except (ValueError, TypeError) as error:
                told = f"{self._file.name}: {field.name} of row {number} has no shape: {error}"
                raise UsageError(f"{told}; write numbers, or lists of one length") from None
        return found

    def read_ahead(self, number: int) -> None:
        """Its row group, and the block after it."""
        group = self._opened.metadata.row_group(bisect_right(self._ends, number))
        first = group.column(0)
        begin = first.data_page_offset if first.dictionary_page_offset is None else first.dictionary_page_offset
        self._file.ahead(begin, sum(group.column(at).total_compressed_size for at in range(group.num_columns)) + AHEAD)

    def _row(self, number: int) -> tuple[pyarrow.Table, int]:
        """The row group in which a sample lies, and its number there."""
        group = bisect_right(self._ends, number)
        table = self._groups.table(self._file.name, group)
        if table is None:
            table = self._groups.kept(self._file.name, group, self._read(group))
        return table, number - (self._ends[group - 1] if group else 0)

    def _read(self, group: int) -> pyarrow.Table:
        try:
            return self._opened.read_row_group(group, use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise ExecutionError(
                f"{self._file.name}: row group {group} cannot be read: {error}; copy it again, or pack again"
            ) from None


class RowGroups:
    """The row groups that were read last, of all shards; what was not asked for longest goes."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, int], pyarrow.Table] = OrderedDict()
        self._held = 0

    def table(self, file: str, group: int) -> pyarrow.Table | None:
        """A row group that is kept."""
        if (file, group) not in self._tables:
            return None
        self._tables.move_to_end((file, group))
        return self._tables[file, group]

    def kept(self, file: str, group: int, table: pyarrow.Table) -> pyarrow.Table:
        """The row group, which is kept now."""
        self._tables[file, group] = table
        self._held += table.nbytes
        while self._held > KEPT_BYTES and len(self._tables) > 1:
            self._held -= self._tables.popitem(last=False)[1].nbytes
        return table


def _bytes(key: str, sizes: Iterable[tuple[str, int]]) -> int:
    return len(key.encode()) + sum(size for _, size in sizes)


def _group_overhead(columns: Sequence[str]) -> int:
    return COLUMN + sum(COLUMN + 2 * len(name.encode()) for name in (KEY, *columns))


def _groups(samples: Iterable[tuple[str, Files]]) -> Iterable[list[tuple[str, Files]]]:
    group, held = list[tuple[str, Files]](), 0
    for key, files in samples:
        group.append((key, files))
        held += _bytes(key, ((suffix, len(content)) for suffix, content in files.items()))
        if held >= GROUP:
            yield group
            group, held = [], 0
    if group:
        yield group


def _file(name: str, type: pyarrow.DataType, cell: pyarrow.Scalar) -> Files:
    """The file of a cell; none for types that are neither bytes, text nor numbers."""
    types = pyarrow.types
    if types.is_binary(type) or types.is_large_binary(type) or types.is_fixed_size_binary(type):
        return {name: cell.as_py()}
    if types.is_string(type) or types.is_large_string(type):
        return {name: cell.as_py().encode()}
    inner, lists = type, 0
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner, lists = inner.value_type, lists + 1
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        return {}
    values = cell.values.to_numpy(zero_copy_only=False) if lists == 1 else cell.as_py()
    content = io.BytesIO()
    numpy.save(content, numpy.asarray(values, dtype=inner.to_pandas_dtype()), allow_pickle=False)
    return {f"{name}.npy": content.getvalue()}
