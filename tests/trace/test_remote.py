"""Traces behind URLs: a real S3 server, http servers with and without ranges, fsspec's memory."""

from __future__ import annotations

import gzip
import io
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from dptune.cli import main
from dptune.errors import DptuneError, RunError, TraceError
from dptune.trace import Trace, load
from dptune.trace.kineto.arguments import arguments
from dptune.trace.kineto.decode import decode
from dptune.trace.places import source
from dptune.trace.places.failure import RemoteError, explained
from dptune.trace.places.remote import Reading, Remote

from .conftest import ONE, SAMPLE, forget_s3

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: the extra `remote`")

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def trace_text(events: int = 1, padding: int = 0, **header: object) -> bytes:
    padded = {"Padding": " " * padding} if padding else {}
    rows = [{**EVENT, "ts": at, "args": {"External id": at} | padded} for at in range(events)]
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": rows}).encode()


def ranks_of(run) -> list[int]:
    return [rank.rank for rank in run.ranks]


def same(one: Trace, other: Trace, rows: int | None = None) -> bool:
    """Whether all columns of events are equal, or their first `rows`."""
    pairs = [(getattr(one.columns, column.name), getattr(other.columns, column.name)) for column in fields(one.columns)]
    return all(a == b if isinstance(a, tuple) else np.array_equal(a if rows is None else a[:rows], b) for a, b in pairs)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port on which nothing listens, and that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# --- S3


@pytest.fixture
def other_s3(s3, monkeypatch):
    """The environment of a test that changes how the store is reached."""
    forget_s3()
    yield monkeypatch
    monkeypatch.undo()
    forget_s3()


def test_a_trace_in_a_bucket_has_the_columns_of_the_local_file(s3):
    remote, local = decode(f"s3://bucket/runs/healthy/{ONE}"), decode(SAMPLE / ONE)
    assert same(remote, local)
    assert remote.distributed == local.distributed
    rows = [0, 5, local.events // 2]
    assert arguments(remote, rows) == arguments(local, rows)


@pytest.mark.parametrize(
    "name",
    [
        "s3://bucket/runs/healthy",
        pytest.param("s3://bucket/runs/healthy/", marks=pytest.mark.thorough),
        pytest.param("s3://bucket/runs/healthy/run.json", marks=pytest.mark.thorough),
        "s3://bucket/runs/",
        "s3://bucket/runs/latest",
        "s3://bucket/runs/h*",
    ],
)
def test_a_run_folder_in_a_bucket(s3, name):
    run, local = load([name]), load([SAMPLE])
    assert run.rank_basis == "the run folder"
    assert run.sources == ["s3://bucket/runs/healthy"]
    assert (run.record, run.facts, run.findings) == (local.record, local.facts, [])
    assert [
        same(a.light, b.light) and same(a.detailed, b.detailed) for a, b in zip(run.ranks, local.ranks, strict=True)
    ] == [
        True,
        True,
    ]


def test_a_glob_of_a_bucket(s3):
    run = load(["s3://bucket/runs/*/rank-*[0-9].trace.json.gz"])
    assert ranks_of(run) == [0, 1]
    assert [rank.source for rank in run.ranks] == [
        f"s3://bucket/runs/healthy/rank-0000{n}.trace.json.gz" for n in (0, 1)
    ]


def test_a_report_on_a_bucket(s3, capsys):
    assert main(["report", "s3://bucket/runs/healthy", "--format", "json", "--no-cache"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["run"]["sources"] == ["s3://bucket/runs/healthy"]
    assert main(["report", "s3://bucket/runs/absent", "--format", "text"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "dptune: error: s3://bucket/runs/absent does not exist\nhint: " in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s3://bucket/absent.json", "s3://bucket/absent.json does not exist"),
        ("s3://bucket/absent*.json", r"s3://bucket/absent\*.json does not exist"),
        ("s3://absent/trace.json", "s3://absent/trace.json: its bucket does not exist"),
        ("s3://absent/*.json", r"s3://absent/\*.json: its bucket does not exist"),
        ("s3://absent", "s3://absent does not exist"),
    ],
)
def test_what_is_not_in_a_bucket(s3, name, message):
    with pytest.raises(RunError, match=message) as error:
        load([name])
    assert error.value.hint


def test_a_listing_is_made_anew(s3):
    files = fsspec.filesystem("s3")
    files.pipe("bucket/growing/rank0.json", trace_text())
    assert ranks_of(load(["s3://bucket/growing"])) == [0]
    first = source.identity("s3://bucket/growing/rank0.json")
    fsspec.filesystem("s3", skip_instance_cache=True).pipe(
        {"bucket/growing/rank1.json": trace_text(), "bucket/growing/rank0.json": trace_text(3)}
    )
    assert source.identity("s3://bucket/growing/rank0.json") not in (None, first)
    run = load(["s3://bucket/growing"])
    assert [rank.light.events for rank in run.ranks] == [3, 1]


def test_one_unreadable_file_in_a_bucket_is_a_finding(s3):
    fsspec.filesystem("s3").pipe({"bucket/mixed/rank0.json": trace_text(), "bucket/mixed/rank1.json": b"hello"})
    run = load(["s3://bucket/mixed"])
    assert ranks_of(run) == [0]
    assert [finding.code for finding in run.findings] == ["file-unreadable"]


def test_an_endpoint_that_does_not_answer(other_s3, silent_port):
    other_s3.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent_port}")
    with pytest.raises(RunError, match="the host cannot be reached"):
        load(["s3://bucket/runs/healthy"])


def test_without_credentials(other_s3):
    other_s3.delenv("AWS_ACCESS_KEY_ID")
    other_s3.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RunError, match="no credentials") as error:
        load(["s3://bucket/runs/healthy/run.json"])
    assert "AWS_PROFILE" in error.value.hint


def test_with_wrong_credentials(other_s3):
    other_s3.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)  # the server looks at them from now on
    other_s3.setenv("AWS_ACCESS_KEY_ID", "nobody")
    for name in (f"s3://bucket/runs/healthy/{ONE}", "s3://bucket/runs/*"):
        with pytest.raises(RunError, match="access is denied"):
            load([name])
    assert source.identity(f"s3://bucket/runs/healthy/{ONE}") is None


# --- http


@dataclass
class Site:
    """What a test's http server holds, and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_at: int | None = None
    status: int = 200
    etag: str = ""
    address: str = ""

    def answer(self, to: BaseHTTPRequestHandler, body: bool) -> None:
        path = to.path.partition("?")[0]
        inside = [name[len(path) :].partition("/") for name in self.files if name.startswith(path)]
        listing = "".join(f'<a href="{name}{slash}">{name}</a>' for name, slash, _ in sorted(set(inside)))
        content = self.files.get(path, listing.encode() if path.endswith("/") else None)
        if content is None and inside and self.status == 200:  # a folder without its slash
            to.send_response(301)
            to.send_header("Location", f"{path}/")
            to.send_header("Content-Length", "0")
            to.end_headers()
            return
        if self.status != 200 or content is None:
            to.send_error(self.status if self.status != 200 else 404)
            return
        start, end = 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", to.headers.get("Range", ""))
        if asked and self.ranges:
            start, end = int(asked[1]), min(int(asked[2]) + 1, end)
            to.send_response(206)
            to.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        else:
            to.send_response(200)
        to.send_header("Content-Length", str(end - start))
        to.send_header("Content-Type", "text/html" if path.endswith("/") else "application/octet-stream")
        if self.etag:
            to.send_header("ETag", self.etag)
        to.end_headers()
        if not body:
            return
        cut = end if self.cut_at is None else min(end, self.cut_at)
        to.wfile.write(content[start : max(start, cut)])
        to.close_connection = cut < end


@pytest.fixture
def site() -> Iterator[Site]:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: the extra `remote`")
    held = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                held.answer(self, body=True)
            except ConnectionError:  # the reader has enough
                self.close_connection = True

        def do_HEAD(self) -> None:
            held.answer(self, body=False)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    held.address = f"http://127.0.0.1:{server.server_port}"
    yield held
    server.shutdown()
    thread.join()
    server.server_close()


MANY, PADDING = 9_000, 1_100  # events of a file that takes more than two requests, and blanks in each


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("large") / "rank0.json"
    path.write_bytes(trace_text(MANY, PADDING))
    assert path.stat().st_size > 10 * 2**20
    return path


ANSWERS = pytest.mark.parametrize(
    ("packed", "ranges"),
    [
        pytest.param(False, True, id="plain-ranges"),
        pytest.param(True, False, id="gzip-no ranges"),
        pytest.param(False, False, id="plain-no ranges", marks=pytest.mark.thorough),
        pytest.param(True, True, id="gzip-ranges", marks=pytest.mark.thorough),
    ],
)


@ANSWERS
def test_a_large_trace_over_http(site, large, ranges, packed):
    site.ranges = ranges
    content = large.read_bytes()
    site.files = {"/rank0.json": gzip.compress(content, 0) if packed else content}
    remote, local = decode(f"{site.address}/rank0.json"), decode(large)
    assert remote.partial == ""
    assert same(remote, local)
    assert arguments(remote, [MANY - 1]) == [{"External id": MANY - 1, "Padding": " " * PADDING}]


@ANSWERS
def test_what_came_before_a_connection_broke_is_kept(site, large, ranges, packed):
    site.ranges, site.cut_at = ranges, 7 * 2**20
    content = large.read_bytes()
    site.files = {"/rank0.json": gzip.compress(content, 0) if packed else content}
    run = load([f"{site.address}/rank0.json"])
    trace, whole = run.ranks[0].light, decode(large)
    assert MANY * 0.3 < trace.events < MANY * 0.7
    assert same(whole, trace, rows=trace.events)
    assert re.search(
        r"after [\d,]+ whole events, .*reading stopped at byte [\d,]+: the connection broke", trace.partial
    )
    site.cut_at = 2**20
    with pytest.raises(TraceError, match=r"cannot read http://.*: the connection broke off"):
        arguments(trace, [trace.events - 1])


def test_processes_read_urls(site):
    site.files = {f"/rank{rank}.json": trace_text(1 + rank) for rank in (0, 1)}
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        run = load([f"{site.address}{name}" for name in site.files], executor=pool)
    assert [(rank.rank, rank.light.events) for rank in run.ranks] == [(0, 1), (1, 2)]


def test_a_connection_that_breaks_at_once(site):
    site.files, site.cut_at = {"/rank0.json": trace_text(5)}, 0
    with pytest.raises(TraceError, match="the connection broke off or timed out") as error:
        load([f"{site.address}/rank0.json"])
    assert "network" in error.value.hint


@pytest.mark.parametrize("ranges", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("name", ["", "latest", "healthy", "healthy/", "healthy/run.json"])
def test_a_run_folder_over_http(site, ranges, name):
    site.ranges = ranges
    site.files = {f"/runs/healthy/{path.name}": path.read_bytes() for path in SAMPLE.iterdir() if path.is_file()}
    site.files["/runs/latest"] = b"healthy"
    run = load([f"{site.address}/runs/{name}"])
    assert ranks_of(run) == [0, 1]
    assert sorted(run.facts) == [0, 1]
    assert run.sources == [f"{site.address}/runs/healthy"]


def test_a_glob_over_http(site):
    site.files = {f"/x/{path.name}": path.read_bytes() for path in SAMPLE.iterdir() if path.is_file()}
    run = load([f"{site.address}/x/rank-*[0-9].trace.json.gz"])
    assert [source.located(rank.source).name for rank in run.ranks] == [f"rank-0000{n}.trace.json.gz" for n in (0, 1)]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "does not exist"),
        (401, "access is denied"),
        (403, "access is denied"),
        (503, "the server failed, with status 503"),
    ],
)
def test_an_http_server_that_refuses(site, status, message):
    site.status = status
    with pytest.raises(RunError, match=message):
        load([f"{site.address}/rank0.json"])


def test_identity_over_http(site):
    site.files = {"/rank0.json": trace_text()}
    name = f"{site.address}/rank0.json"
    assert source.identity(name) is None  # a size tells too little
    site.etag = '"one"'
    first = source.identity(name)
    assert first == source.identity(name) != None  # noqa: E711
    site.etag = '"two"'
    assert source.identity(name) not in (None, first)


def test_secrets_of_a_url_are_not_said(site, capsys):
    site.files = {"/rank0.json": trace_text(5, distributedInfo={"rank": 0, "world_size": 1})}
    url = f"{site.address.replace('//', '//me:hunter2@')}/{{}}?X-Amz-Signature=abc123&token=def456"
    secret = re.compile("hunter2|abc123|def456")
    for form in ("json", "text"):
        assert main(["report", url.format("rank0.json"), "--format", form, "--no-cache"]) in (0, 2)
        said = capsys.readouterr()
        assert "rank0.json" in said.out
        assert not secret.search(said.out + said.err)
    site.files["/broken.json"] = b"hello"
    for name in ("absent.json", "broken.json"):
        assert main(["report", url.format(name), "--debug"]) == 2
        said = capsys.readouterr()
        assert name in said.err
        assert not secret.search(said.out + said.err)
    run = load([url.format("rank0.json")])
    assert run.ranks[0].source == run.sources[0] == source.redacted(url.format("rank0.json"))
    assert arguments(run.ranks[0].light, [4]) == [{"External id": 4}]  # and yet it is opened again


# --- memory, and what is missing


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def test_torchtitan_folder_reads_the_last_iteration(memory):
    for iteration in (9, 10):
        for rank in range(11):
            memory.pipe(f"/t/iteration_{iteration}/rank{rank}_trace.json", trace_text(iteration))
    memory.pipe("/t/.hidden/rank0.json", b"{")
    memory.pipe("/t/iteration_10/.rank0.json", b"{")
    memory.pipe("/t/notes.txt", b"{")
    run = load(["memory://t"])
    assert ranks_of(run) == list(range(11))
    assert {rank.light.events for rank in run.ranks} == {10}
    assert [finding.text for finding in run.findings] == ["read iteration_10; left out iteration_9"]


def test_files_without_a_rank_are_in_natural_order(memory):
    for number in (2, 10, 1):
        memory.pipe(f"/n/trace_{number}.json", trace_text(number))
    memory.pipe("/n/.trace_3.json", b"{")
    for name in ("memory://n", "memory://n/*.json"):
        assert [rank.light.events for rank in load([name]).ranks] == [1, 2, 10]


def test_folders_of_several_runs_and_of_none(memory):
    for name in ("a", "b"):
        memory.put(str(SAMPLE), f"/runs/{name}", recursive=True)
    with pytest.raises(RunError, match=r"memory://runs holds 2 runs") as error:
        load(["memory://runs"])
    assert "memory://runs/b" in error.value.hint
    with pytest.raises(RunError, match="both hold rank 0"):
        load(["memory://runs/a", "memory://runs/b"])
    memory.pipe("/empty/notes.txt", b"")
    with pytest.raises(RunError, match="memory://empty holds no trace files"):
        load(["memory://empty"])


def test_local_and_remote_together(memory):
    memory.put(str(SAMPLE / ONE), "/x/rank0.json.gz")
    run = load(["memory://x/rank0.json.gz", SAMPLE / "rank-00001.trace.json.gz", "memory://x"])
    assert ranks_of(run) == [0, 1]
    assert run.findings == []


def test_a_damaged_record_is_a_finding(memory):
    memory.put(str(SAMPLE), "/run", recursive=True)
    memory.pipe("/run/run.json", b"{")
    run = load(["memory://run"])
    assert ranks_of(run) == [0, 1]
    assert [finding.code for finding in run.findings] == ["file-unreadable"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [(FileNotFoundError("gone"), "memory://n/*.json does not exist"), (PermissionError("closed"), "access is denied")],
)
def test_a_pattern_that_cannot_be_looked_for(memory, monkeypatch, error, shown):
    def glob(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(type(memory), "glob", glob)
    with pytest.raises(RunError) as raised:
        load(["memory://n/*.json"])
    assert shown in raised.value.message


def test_what_a_listing_names_elsewhere_is_found_there(memory, monkeypatch):
    """As a page may link to another folder of its server."""
    memory.pipe("/n/rank0.json", trace_text())
    elsewhere = {name: {"name": name, "type": "file"} for name in ("/n/rank0.json", "/other/rank1.json")}
    monkeypatch.setattr(type(memory), "find", lambda *_args, **_kwargs: elsewhere)
    found = Remote("memory://n").rglob("*.json")
    assert [str(path) for path in found] == ["memory://n/rank0.json", "memory:///other/rank1.json"]


def test_what_is_neither_a_file_nor_a_folder_is_not_opened():
    with pytest.raises(RemoteError, match="it is not a regular file"):
        Remote("memory://n/queue", {"type": "pipe"}).opened()


def test_the_bytes_of_a_file(memory):
    memory.pipe("/n/notes", b"0123456789")
    file = Reading(Remote("memory://n/notes"))
    assert (file.read(4), file.tell(), file.read(), file.read(3)) == (b"0123", 4, b"456789", b"")
    for _ in range(2):
        file.close()
    assert file.closed


def test_bytes_before_an_error_are_returned_first(memory, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell() == 4:
                raise ConnectionError("reset")
            return super().read(min(size, 4))

    memory.pipe("/n/notes", b"0123456789")
    monkeypatch.setattr(type(memory), "open", lambda *_args, **_kwargs: Broken(b"0123456789"))
    file = Reading(Remote("memory://n/notes"))
    assert file.read(10) == b"0123"
    with pytest.raises(RemoteError, match="the connection broke off"):
        file.read(6)


def test_a_zip_of_a_run(tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for path in SAMPLE.iterdir():
            archive.write(path, f"run/{path.name}")
    assert ranks_of(load([f"zip://run::{tmp_path}/run.zip"])) == [0, 1]
    assert ranks_of(load([f"zip://run/*[0-9].trace.json.gz::file://{tmp_path}/run.zip"])) == [0, 1]


@pytest.mark.parametrize(
    ("missing", "name", "message", "hint"),
    [
        ("fsspec.core", "s3://bucket/x.json", "needs fsspec, which is not installed", 'pip install "dptune[remote]"'),
        ("gcsfs", "gs://bucket/x.json", "gs:// needs a package that is not installed", "pip install gcsfs"),
        ("", "s4://bucket/x.json", "fsspec knows no protocol s4://", "did you mean s3://?"),
    ],
)
def test_what_is_not_installed(monkeypatch, missing, name, message, hint):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RunError, match=re.escape(message)) as error:
        load([name])
    assert error.value.hint == hint
    with pytest.raises(TraceError, match=re.escape(message)), source.opened(name):
        pass
    assert isinstance(error.value, DptuneError)


def test_a_folder_and_nothing_are_no_files(memory):
    memory.pipe("/t/rank0.json", trace_text())
    for name, why in (("memory://t", "it is a folder"), ("memory://t/rank1.json", "it does not exist")):
        with pytest.raises(TraceError, match=why), source.opened(name):
            pass


@pytest.mark.parametrize(
    ("error", "protocol", "message", "hint"),
    [
        (RuntimeError("no s3://key:secret@host/x\nat all"), "s3", "RuntimeError: no s3://...@host/x", "fsspec"),
        (RuntimeError(), "s3", "RuntimeError", "fsspec"),
        (ValueError("Protocol not known: abfss"), "abfss", "fsspec knows no protocol abfss://", "pip install adlfs"),
    ],
)
def test_errors_that_nothing_else_explains(error, protocol, message, hint):
    found = explained(error, protocol)
    assert found.hint.startswith(hint)
    assert "secret" not in str(found)
    assert str(found).startswith(message.partition("...")[0])
    assert explained(found, protocol) is found
