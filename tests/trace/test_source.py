"""Paths and URLs: which is which, and what tells one content of a file from another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.trace.places import source, url


@pytest.mark.parametrize(
    "name",
    [
        "s3://bucket/run/",
        "s3://bucket/x/*.json.gz",
        "memory://rank0.json",
        "hf://datasets/me/traces/rank0.json.gz",
        "https://host/rank0.json",
        "abfss://container@account.dfs.core.windows.net/x",
        "simplecache::s3://bucket/rank0.json",
        "zip://rank0.json::s3://bucket/run.zip",
        "filecache::zip://*.json::https://host/run.zip",
    ],
)
def test_urls(name):
    assert url.is_url(name)


@pytest.mark.parametrize(
    "name", [r"C:\runs\rank0.json", "C:/runs", "C://runs", "rank0.json", "/a/b", "a:b", "./s3://x", "//host/share", ""]
)
def test_paths(name):
    assert not url.is_url(name)


def test_identity_of_a_local_file_changes_with_its_content(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    first = source.identity(str(path))
    assert first is not None
    assert source.identity(str(path)) == first
    path.write_text("two")  # of the same length
    second = source.identity(str(path))
    os.utime(path, ns=(1, 1))
    path.write_text("three")
    os.utime(path, ns=(1, 1))
    third = source.identity(str(path))
    other = tmp_path / "other.json"
    other.write_text("one")
    os.utime(other, ns=(1, 1))
    other.replace(path)
    assert len({first, second, third, source.identity(str(path))}) == 4


@pytest.mark.parametrize("name", ["absent.json", ".", "a\0b"])
def test_no_identity_of_what_is_no_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert source.identity(name) is None


def test_identity_of_a_remote_file_changes_with_its_content():
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: the extra `remote`")
    files = fsspec.filesystem("memory")
    name = "memory://identity/trace.json"
    files.pipe("/identity/trace.json", b"one")
    first = source.identity(name)
    assert first is not None
    assert source.identity(name) == first
    files.pipe("/identity/trace.json", b"two")
    assert source.identity(name) not in (None, first)
    assert source.identity("memory://identity") is None
    assert source.identity("memory://identity/absent.json") is None
    assert source.identity("nosuchprotocol://x/trace.json") is None


def test_local_files_are_read_without_fsspec(tmp_path):
    """Neither is imported for a path, nor for a folder or a glob."""
    sample = Path(__file__).resolve().parents[2] / "sample_traces" / "healthy"
    program = """
import sys
from dptune.trace import load
from dptune.trace.places import source
load(sys.argv[1:2])
load([sys.argv[1] + "/*.trace.json.gz"])
source.identity(sys.argv[1] + "/run.json")
print(sorted({name.partition(".")[0] for name in sys.modules} & {"fsspec", "upath", "s3fs", "aiohttp"}))
"""
    done = subprocess.run([sys.executable, "-c", program, str(sample)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("https://host/a/rank0.json.gz?X-Amz-Signature=abc", "https://host/a/rank0.json.gz?<redacted>"),
        ("https://me:p@ss@host/x", "https://<redacted>@host/x"),
        ("https://token@host/x#part", "https://<redacted>@host/x?<redacted>"),
        ("ftp://me:pass@host:21/x", "ftp://<redacted>@host:21/x"),
        ("s3://bucket/rank?.json.gz", "s3://bucket/rank?.json.gz"),
        ("s3://bucket/rank0.json?token=abc", "s3://bucket/rank0.json?<redacted>"),
        ("abfss://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x"),
        ("zip://a.json::https://host/x.zip?sig=abc", "zip://a.json::https://host/x.zip?<redacted>"),
        ("a/b?token=abc", "a/b?token=abc"),
    ],
)
def test_a_url_is_shown_without_its_secrets(name, shown):
    assert source.redacted(name) == shown
    if source.is_url(name):
        assert repr(source.located(name)) == f"Remote({shown!r})"


def test_what_is_no_url_has_no_parts():
    with pytest.raises(ValueError, match="a/b is not a URL"):
        url.parts("a/b")


@pytest.mark.parametrize(
    ("name", "parent", "last"),
    [
        ("s3://bucket/run/rank0.json", "s3://bucket/run", "rank0.json"),
        ("s3://bucket/run/", "s3://bucket", "run"),
        ("s3://bucket", "s3://bucket", "bucket"),
        ("ftp://me:pass@host/x/y.json", "ftp://me:pass@host/x", "y.json"),
        ("https://host/x/y.json?sig=abc", "https://host/x", "y.json"),
        ("abfss://box@account/x/y.json", "abfss://box@account/x", "y.json"),
        ("zip://a/b.json::s3://bucket/c.zip", "zip://a::s3://bucket/c.zip", "b.json"),
    ],
)
def test_the_folder_of_a_url_is_opened_as_the_url_is(name, parent, last):
    path = source.located(name)
    assert os.fspath(path) == name
    assert path.name == last
    assert path.parent == source.located(parent)
    if path.parent != path:
        assert path.parent / last == source.located(name.partition("?")[0])
