"""A real S3 server with the sample runs, for what reads URLs here and on workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

RUNS = Path(__file__).resolve().parents[1] / "rules" / "recorded" / "runs"
SAMPLE = RUNS / "uncovered-cost"  # two ranks of 4,500 events each, their detailed windows included
ONE = "rank-00000.trace.json.gz"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server that holds the sample runs in `bucket`."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: the extra `remote`")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto, flask or flask-cors is not installed")
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST"))  # what another module stored
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
            "NO_PROXY": "127.0.0.1",
        }.items():
            patch.setenv(name, value)
        files = fsspec.filesystem("s3")
        files.mkdir("bucket")
        files.put(str(SAMPLE), "bucket/runs/healthy", recursive=True)
        files.pipe("bucket/runs/healthy/", b"")  # as consoles mark a folder
        files.pipe("bucket/runs/latest", b"healthy\n")
        for rank in range(11):
            files.put(str(SAMPLE / ONE), f"bucket/foreign/rank{rank}.json.gz")
        yield f"http://{host}:{port}"
        forget_s3()
    moto.stop()


def forget_s3() -> None:
    """Have the next file system look at the environment again."""
    fsspec = pytest.importorskip("fsspec")
    type(fsspec.filesystem("s3")).clear_instance_cache()
