"""Ways to damage the text of a trace, and its packing. All take a random.Random and bytes, and give bytes."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from random import Random

NUMBER = re.compile(rb"(?<=[:\s\[,])-?\d+(?:\.\d+)?(?=[\s,}\]])")
STRING = re.compile(rb'"[^"\\]{0,200}"')
FIGURES = (
    b"ts",
    b"dur",
    b"bytes",
    b"stream",
    b"device",
    b"correlation",
    b"External id",
    b"external id",
    b"In msg nelems",
    b"Out msg nelems",
    b"Group size",
    b"Seq",
    b"Bytes",
    b"Addr",
    b"Total Allocated",
    b"Total Reserved",
    b"Device Id",
    b"pid",
    b"tid",
)
_FIGURE = re.compile(rb'"(' + b"|".join(FIGURES) + rb')"\s*:\s*"?-?(\d[\d.]*)')
EXTREME = (
    b"1e400",
    b"-1e400",
    b"-1",
    b"9" * 5000,
    b"9" * 30,
    b"NaN",
    b"-nan",
    b"inf",
    b"-Infinity",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"9223372036854775.808",
    b"4611686018427387.904",
    b"1e-400",
    b"0.0005",
    b"1.7976931348623157e308",
    b"-0",
    b"-0.0",
    b"1e9999999",
    b"00012",
    b"+5",
    b".5",
    b"5.",
    b"0x1F",
    b"1_000",
    b"null",
    b"true",
    b'"12"',
    b"[]",
    b"{}",
)
TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\0",
    b"\xff",
    b"\n",
    b"},{",
    b'{"ph":"X"}',
    b"]}",
    b"\xef\xbb\xbf",
)
WORDS = (
    b"\x00\x01\x1f",
    b"\\ud800",
    b"\\udc00\\ud800",
    b"\\ud83d\\ude00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\\q",
    b"C:\\Users\\me",
    b"\\u12",
    b"\\",
    b"}, {",
    b'},{\\"ph\\"',
    b"\x7f\xc2\x85\xe2\x80\xa8",
    b"ProfilerStep#" + b"9" * 400,
    b"a" * 70_000,
    b"\x1b[31m",
)


def flip(random: Random, text: bytes) -> bytes:
    """One to eight bytes become others."""
    found = bytearray(text)
    for _ in range(random.randint(1, 8)):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


def insert(random: Random, text: bytes) -> bytes:
    """A bracket, a quote, or random bytes."""
    at = random.randint(0, len(text))
    new = random.choice(TOKENS) if random.random() < 0.7 else random.randbytes(random.randint(1, 40))
    return text[:at] + new + text[at:]


def delete(random: Random, text: bytes) -> bytes:
    """A stretch of up to 400 bytes is lost."""
    at = random.randrange(len(text))
    return text[:at] + text[at + random.choice((1, 1, 2, 20, 400)) :]


def truncate(random: Random, text: bytes) -> bytes:
    """The end is lost."""
    return text[: random.randrange(1, len(text) + 1)]


def splice(random: Random, text: bytes, other: bytes) -> bytes:
    """The beginning of one and the end of another: two ranks wrote to one file."""
    return text[: random.randrange(1, len(text) + 1)] + other[random.randrange(len(other) or 1) :]


def repeat(random: Random, text: bytes) -> bytes:
    """A stretch stands there several times."""
    at = random.randrange(len(text))
    end = at + random.choice((10, 200, 3000))
    return text[:end] + text[at:end] * random.choice((1, 2, 20)) + text[end:]


def number(random: Random, text: bytes) -> bytes:
    """A number becomes an extreme one, or none."""
    return _replaced(random, text, NUMBER, random.choice(EXTREME))


def string(random: Random, text: bytes) -> bytes:
    """A string becomes one that is hard to read, or badly encoded."""
    return _replaced(random, text, STRING, b'"' + random.choice(WORDS) + b'"')


def bracket(random: Random, text: bytes) -> bytes:
    """A bracket, a quote, a comma or a colon is lost."""
    return _replaced(random, text, re.compile(rb'[{}\[\]",:]'), b"")


def nest(random: Random, text: bytes) -> bytes:
    """A value becomes a deeply nested one."""
    depth = random.choice((5, 500, 20_000))
    deep = b"[" * depth + b"]" * depth if random.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth
    return _replaced(random, text, NUMBER, deep[: random.choice((len(deep), depth))])


def encoding(random: Random, text: bytes) -> bytes:
    """A byte order mark, or another encoding."""
    mark = random.choice((b"\xef\xbb\xbf", b"utf-16", b"utf-16-le", b"utf-16-be"))
    return mark + text if mark[:1] == b"\xef" else text.decode("utf-8", "replace").encode(mark.decode())


def figure(random: Random, text: bytes) -> bytes:
    """One digit of one figure that dptune reads becomes another; the JSON stays sound."""
    match = random.choice(list(_FIGURE.finditer(text)))
    places = [at for at in range(match.start(2), match.end(2)) if text[at : at + 1].isdigit()]
    at = random.choice(places)
    leading = at == match.start(2) and len(places) > 1
    digit = random.choice([each for each in b"123456789" if each != text[at]] if leading else b"0123456789")
    return text[:at] + bytes([digit]) + text[at + 1 :]


def packing(random: Random, text: bytes) -> bytes:
    """Packed, and most of the time damaged in the packing."""
    kind = random.randrange(8)
    if kind == 0:  # several members
        at = random.randint(0, len(text))
        return gzip.compress(text[:at], 1) + gzip.compress(text[at:], 1) + random.choice((b"", b"\0" * 9, b"junk"))
    packed = bytearray(gzip.compress(text, random.choice((0, 1, 6)), mtime=0))
    if kind == 1:
        for _ in range(random.randint(1, 4)):
            packed[random.randrange(len(packed))] ^= 1 << random.randrange(8)
    elif kind == 2:
        del packed[random.randrange(2, len(packed)) :]
    elif kind == 3:
        at = random.randrange(2, len(packed))
        del packed[at : at + random.choice((1, 8, 300))]
    elif kind == 4:
        packed[-8:] = random.choice((b"", b"\0" * 8, struct.pack("<II", zlib.crc32(text), 5)))
    elif kind == 5:  # junk between two members
        at = random.randint(0, len(text))
        packed = bytearray(gzip.compress(text[:at], 1) + random.randbytes(5) + gzip.compress(text[at:], 1))
    elif kind == 6 and random.random() < 0.1:  # very little that unpacks to very much
        at = random.randint(0, len(text))
        padding = random.choice((b" ", b"a", b"[", b"{},", b"}, {", b"9", b'"', b"\\")) * 2**20
        packed = bytearray(gzip.compress(text[:at] + padding + text[at:], 1))
    return bytes(packed)


def _replaced(random: Random, text: bytes, pattern: re.Pattern[bytes], new: bytes) -> bytes:
    found = list(pattern.finditer(text, random.randrange(max(len(text) - 200, 1)), len(text)))[:20]
    if not found:
        return text
    match = random.choice(found)
    return text[: match.start()] + new + text[match.end() :]


DAMAGES = (flip, insert, delete, truncate, repeat, number, number, string, string, bracket, nest)
