import errno
import gzip
import io
import zlib

import pytest

from dptune.errors import TraceError
from dptune.trace.kineto import text
from dptune.trace.places import source

TEXT = b'{"traceEvents": [' + b",".join(b'{"ph": "X", "ts": %d}' % at for at in range(50_000)) + b"]}"


@pytest.fixture(params=["isal", "zlib"])
def unpacker(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setattr(text, "_zlib", zlib)
    else:
        pytest.importorskip("isal")


def written(tmp_path, data: bytes):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    return path


def read(path, **limits):
    """All text of a file, and the reader after it."""
    with source.opened(str(path)) as file:
        reader = text.Text(file, str(path), **limits)
        blocks = []
        while block := reader.read():
            blocks.append(block)
    assert all(len(block) >= text.BLOCK_BYTES // 2 for block in blocks[:-1])
    return b"".join(blocks), reader


def test_sound_gzip(tmp_path, unpacker):
    found, reader = read(written(tmp_path, gzip.compress(TEXT)))
    assert (found, reader.broken, reader.limited) == (TEXT, "", False)


@pytest.mark.parametrize("at", [1, 1000, len(TEXT) - 1])
def test_members_written_one_after_the_other(tmp_path, unpacker, at):
    packed = gzip.compress(TEXT[:at]) + gzip.compress(TEXT[at:])
    found, reader = read(written(tmp_path, packed))
    assert (found, reader.broken) == (TEXT, "")


@pytest.mark.parametrize("level", [0, 9])
def test_many_small_members(tmp_path, unpacker, level):
    """As bgzip writes them; their trailers and headers fall anywhere in what is read at once."""
    packed = b"".join(gzip.compress(TEXT[at : at + 9_973], level) for at in range(0, len(TEXT), 9_973))
    found, reader = read(written(tmp_path, packed))
    assert (found, reader.broken) == (TEXT, "")


def test_junk_after_the_gzip_stream_is_ignored(tmp_path, unpacker):
    found, reader = read(written(tmp_path, gzip.compress(TEXT) + b"\0" * 100 + b"junk"))
    assert (found, reader.broken) == (TEXT, "")


def test_a_wrong_checksum_loses_nothing(tmp_path, unpacker):
    packed = bytearray(gzip.compress(TEXT))
    packed[-5] ^= 0xFF
    packed[-6] ^= 0xFF
    found, reader = read(written(tmp_path, bytes(packed)))
    assert found == TEXT
    assert reader.broken == "the gzip checksum does not fit"


@pytest.mark.parametrize("missing", [1, 8, 5000])
def test_a_cut_stream_keeps_what_came_before(tmp_path, unpacker, missing):
    found, reader = read(written(tmp_path, gzip.compress(TEXT)[:-missing]))
    assert TEXT.startswith(found)
    assert len(found) > len(TEXT) * 0.8
    assert (found == TEXT) == (missing <= 8)
    assert "ends early" in reader.broken


def test_damage_in_the_middle_keeps_what_came_before(tmp_path, unpacker):
    packed = bytearray(gzip.compress(TEXT, 1))
    packed[-3000:-2900] = b"\xff" * 100
    _, reader = read(written(tmp_path, bytes(packed)))
    assert reader.broken


@pytest.mark.long
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_reading_stops_at_the_limit(tmp_path, unpacker, pack):
    data = b"[" + b" " * 4_000_000
    found, reader = read(written(tmp_path, pack(data)), limit_bytes=1_000_000)
    assert (len(found), reader.limited) == (1_000_000, True)
    found, reader = read(written(tmp_path, pack(data)), limit_bytes=len(data))
    assert (len(found), reader.limited) == (len(data), False)


@pytest.mark.long
def test_a_bomb_is_unpacked_in_small_pieces(tmp_path, unpacker):
    """64 MiB of blanks in 64 KiB of gzip: no block is much larger than the others."""
    bomb = gzip.compress(b" " * 2**24)
    with source.opened(str(written(tmp_path, bomb * 4))) as file:
        reader = text.Text(file, "bomb")
        sizes = []
        while block := reader.read():
            sizes.append(len(block))
    assert sum(sizes) == 2**26
    assert max(sizes) <= 2 * text.BLOCK_BYTES


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_that_windows_writes(tmp_path, encoding):
    words = '{"name": "é"}' + " é" * 400_000
    marked = "\ufeff" + words if encoding == "utf-16-be" else words
    assert read(written(tmp_path, marked.encode(encoding)))[0].decode() == words


def test_a_folder_or_an_absent_file_is_an_error_with_a_hint(tmp_path):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(TraceError, match="cannot read") as error:
            read(path)
        assert error.value.hint


def test_a_file_of_nothing_but_a_byte_order_mark(tmp_path):
    assert read(written(tmp_path, b"\xff\xfe"))[0] == b""


def test_an_empty_file(tmp_path):
    with pytest.raises(TraceError, match=r"is empty \(0 bytes\)"):
        read(written(tmp_path, b""))


def test_a_gzip_file_that_cannot_be_read_beyond_its_header(tmp_path, unpacker):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                raise OSError(errno.EIO, "Input/output error")
            return super().read(10)

    reader = text.Text(Broken(gzip.compress(TEXT)), "trace.json.gz")
    with pytest.raises(
        TraceError, match=r"nothing of trace\.json\.gz could be unpacked: .*byte 10: Input/output error"
    ):
        reader.read()


def test_gzip_of_nothing(tmp_path, unpacker):
    with pytest.raises(TraceError, match="nothing could be unpacked"):
        read(written(tmp_path, gzip.compress(TEXT)[:15]))
