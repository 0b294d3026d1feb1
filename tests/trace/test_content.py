import gzip
import zlib

import pytest

from dptune.errors import TraceError
from dptune.trace import content

TEXT = b'{"traceEvents": [' + b",".join(b'{"ph": "X", "ts": %d}' % at for at in range(50_000)) + b"]}"


@pytest.fixture(params=["isal", "zlib"])
def unpacker(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setattr(content, "_zlib", zlib)
    else:
        pytest.importorskip("isal")


def written(tmp_path, data: bytes):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    return path


def test_sound_gzip(tmp_path, unpacker):
    assert content.read(written(tmp_path, gzip.compress(TEXT))) == content.Content(TEXT)


def test_members_written_one_after_the_other(tmp_path, unpacker):
    packed = gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])
    assert content.read(written(tmp_path, packed)) == content.Content(TEXT)


def test_junk_after_the_gzip_stream_is_ignored(tmp_path, unpacker):
    assert content.read(written(tmp_path, gzip.compress(TEXT) + b"\0" * 100 + b"junk")) == content.Content(TEXT)


def test_a_wrong_checksum_loses_nothing(tmp_path, unpacker):
    packed = bytearray(gzip.compress(TEXT))
    packed[-5] ^= 0xFF
    packed[-6] ^= 0xFF
    read = content.read(written(tmp_path, bytes(packed)))
    assert read.text == TEXT
    assert "checksum" in read.broken


@pytest.mark.parametrize("missing", [1, 8, 5000])
def test_a_cut_stream_keeps_what_came_before(tmp_path, unpacker, missing):
    read = content.read(written(tmp_path, gzip.compress(TEXT)[:-missing]))
    assert TEXT.startswith(read.text)
    assert len(read.text) > len(TEXT) * 0.8
    assert (read.text == TEXT) == (missing <= 8)
    assert "ends early" in read.broken


def test_damage_in_the_middle_keeps_what_came_before(tmp_path, unpacker):
    packed = bytearray(gzip.compress(TEXT, 1))
    packed[-3000:-2900] = b"\xff" * 100
    read = content.read(written(tmp_path, bytes(packed)))
    assert read.broken


def test_a_bomb_stops_at_the_limit(tmp_path, unpacker):
    path = written(tmp_path, gzip.compress(b"[" + b" " * 20_000_000))
    with pytest.raises(TraceError, match=r"more than 0\.\d+ GiB of text: reading stopped at that limit"):
        content.read(path, limit_bytes=1_000_000)


def test_a_plain_file_over_the_limit_is_not_read(tmp_path):
    with pytest.raises(TraceError, match="reading stopped"):
        content.read(written(tmp_path, b" " * 2000), limit_bytes=1000)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_that_windows_writes(tmp_path, encoding):
    text = '{"name": "é"}'
    marked = "﻿" + text if encoding == "utf-16-be" else text
    assert content.read(written(tmp_path, marked.encode(encoding))).text.decode() == text


def test_a_folder_or_an_absent_file_is_an_error_with_a_hint(tmp_path):
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(TraceError, match="cannot read") as error:
            content.read(path)
        assert error.value.hint
