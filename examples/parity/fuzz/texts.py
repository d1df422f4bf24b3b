"""What may be wrong with a file as bytes: cut short, bits turned, doubled keys, other encodings, bombs."""

from __future__ import annotations

from random import Random

INSERTED = (
    b"\x00", b"\x1b[31m", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\r", b"\t", b"&a ", b"*a ", b"<<: ",
    b"!!python/name:os ",
    b"!!binary ", b"---\n", b"...\n", b"{", b"}", b"[", b"]", b"'", b'"', b"#", b": ", b"- ", b",", b"1e999", b"NaN",
    b"-",
    b"0x", b"1_0", b"\\u0000", b"\\ud800", b"\x85", b"\xe2\x80\xa8", b"2001-99-99", b"=", b"~", b"|\n", b"%",
)  # fmt: skip
_LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b", ".join([b"*a%d" % (level - 1)] * 9)) for level in range(1, 12)
)
BOMBS = (
    b"[" * 50_000, b'{"a":' * 50_000, b"9" * 100_000, b"- " * 20_000, b"? " * 3_000, b"&a [*a]", b"&a {b: *a}", _LAUGHS,
    b'{"schema_version": 2, "graph": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", b"1" * 5_000 + b": 1", b"name: !!float 1_",
    b"a: 0b", b"a: 1:60:60:60", b"a: !!timestamp 9999-99-99", b"a: !!int 0o9", b"a: 0x" + b"f" * 50_000,
)  # fmt: skip


def spoiled_bytes(content: bytes, random: Random) -> bytes:
    """`content` with one thing wrong that needs no knowledge of what it says."""
    pick = random.randrange(12)
    if not content or pick == 0:
        return random.choice(BOMBS) if random.random() < 0.5 else b""
    place = random.randrange(len(content))
    if pick <= 3:
        return content[:place] + bytes([content[place] ^ (1 << random.randrange(8))]) + content[place + 1 :]
    if pick == 4:
        return content[:place]
    if pick <= 7:
        return content[:place] + random.choice(INSERTED) + content[place:]
    end = min(len(content), place + random.choice((1, 4, 40, 400)))
    if pick == 8:
        return content[:place] + content[end:]
    if pick == 9:
        return content[:end] + content[place:end] + content[end:]
    if pick == 10:
        lines = content.splitlines(keepends=True)
        line = random.choice(lines)
        where = random.randrange(len(lines) + 1)
        return b"".join([*lines[:where], line, *lines[where:]])
    return content.decode(errors="replace").encode(random.choice(("utf-16", "utf-32", "utf-8-sig")))
