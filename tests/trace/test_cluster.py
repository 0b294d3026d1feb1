"""Ranks read by dask.distributed: the figures of one machine to the bit, and what is said of ranks that are lost."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Executor, Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dptune.cli import main
from dptune.errors import RunError, UsageError
from dptune.measure import measure
from dptune.measure.records.making import recording
from dptune.trace import load
from dptune.trace.loading import cluster
from dptune.trace.loading.cluster import Limits, connected
from dptune.trace.loading.gathering import with_events
from dptune.trace.loading.lost import LostError

from .. import reading  # noqa: TID252 - tests are no installed package
from .conftest import SAMPLE

STRAGGLER = "torchrec_straggler_4xv100"
LIMITS = Limits(wait_s=600, rank_timeout_s=600, attempts=2, workers=1)
DPTUNE = Path(sys.executable).parent / "dptune"


@pytest.fixture(scope="module")
def address():
    """The scheduler of a worker that is started again; a call that kills it twice is given up."""
    distributed = pytest.importorskip("distributed")
    with cluster._local(distributed, LIMITS) as local:
        yield local.scheduler_address


@pytest.fixture(scope="module")
def workers(address):
    with connected(address, LIMITS, pytest.fail) as executor:
        yield executor


def test_figures_are_those_of_one_machine_though_a_worker_is_killed(workers, real_traces, tmp_path):
    folder, mark = real_traces / STRAGGLER, tmp_path / "killed"
    killed = workers.submit(os.system, f"test -e {mark} || {{ touch {mark}; kill -9 $PPID; }}")
    run = load([folder], executor=workers, digest=recording)
    assert killed.result() == 0
    assert mark.exists()
    assert not run.ranks
    assert measure(with_events(run, [0, 1, 2, 3], executor=workers)) == reading.measured(folder)


def test_a_local_worker_keeps_memory_for_the_next_trace_and_computes_on_one_core(workers):
    assert workers.submit(os.getenv, "MALLOC_TRIM_THRESHOLD_").result() is None
    assert workers.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"


@pytest.mark.thorough
def test_workers_read_a_bucket_themselves(s3, address, workers):
    distributed = pytest.importorskip("distributed")
    store = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "NO_PROXY"))}
    with distributed.Client(address, set_as_default=False) as client:
        client.run(lambda: os.environ.update(store))
    run, local = (load([name], executor=workers, digest=recording) for name in ("s3://bucket/runs/healthy", SAMPLE))
    assert [rank.source for rank in run.digested] == [
        f"s3://bucket/runs/healthy/rank-0000{rank}.trace.json.gz" for rank in (0, 1)
    ]
    found, expected = (measure(with_events(each, [0], executor=workers)) for each in (run, local))
    sources = {"ranks": {"__all__": {"source"}}}
    assert found.model_dump(exclude=sources) == expected.model_dump(exclude=sources)


def test_the_executor_of_a_dask_client_reads_runs(address, real_traces):
    distributed = pytest.importorskip("distributed")
    with distributed.Client(address, set_as_default=False) as client:
        run = load([real_traces / STRAGGLER], executor=client.get_executor())
    assert measure(run) == reading.measured(real_traces / STRAGGLER)


def test_a_report_by_a_cluster_is_that_of_one_machine(address, real_traces, tmp_path, capsys):
    for path in (real_traces / STRAGGLER).iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "rank_9.json").write_text('{"traceEvents": [')
    written = []
    for where in ([], ["--cluster", address]):
        main(["report", str(tmp_path), "--no-cache", "--format", "json", "--detail-ranks", "0,2", *where])
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    findings = {each["code"]: each["text"] for each in json.loads(written[0])["trust"]["findings"]}
    assert "rank_9.json" in findings["file-unreadable"]
    assert findings["ranks-read-in-part"].startswith("ranks read in full: 0, 2. ")


def test_calls_that_last_too_long_are_lost(address):
    with (
        connected(address, Limits(wait_s=600, rank_timeout_s=0.2, attempts=2, workers=2), pytest.fail) as hasty,
        pytest.raises(LostError, match=r"^it took longer than 0\.2 s to read, tried 2 times$"),
    ):
        hasty.submit(time.sleep, 30).result()


KILLED = "each worker that read it was killed"


def test_a_call_whose_workers_were_killed_is_lost():
    """As dask says so."""
    distributed = pytest.importorskip("distributed.scheduler")
    ended, found = Future(), Future()
    ended.set_exception(distributed.KilledWorker("read", None, 2))
    cluster._settle(ended, found, LIMITS)
    with pytest.raises(LostError, match=KILLED):
        found.result()


def test_what_becomes_of_a_call():
    """A result and an error of the call are passed on; a call that the scheduler gave up is lost."""
    distributed = pytest.importorskip("distributed")
    by_dask = distributed.client.FutureCancelledError("read", "lost")
    for end, error in (
        (ValueError("no trace"), "^no trace$"),
        (CancelledError(), "the scheduler lost it"),
        (by_dask, "the scheduler lost it"),
    ):
        ended, found = Future(), Future()
        ended.set_exception(end)
        cluster._settle(ended, found, LIMITS)
        with pytest.raises((LostError, ValueError), match=error):
            found.result()
    ended, found, cancelled = Future(), Future(), Future()
    ended.set_result(7)
    cancelled.cancel()
    cluster._settle(ended, found, LIMITS)
    cluster._settle(ended, cancelled, LIMITS)
    assert found.result() == 7
    assert cancelled.cancelled()


def test_a_call_on_a_worker_raises_what_it_raises():
    assert cluster._within(600, divmod, (7, 2), {}) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        cluster._within(600, divmod, (7, 0), {})


@pytest.mark.thorough
def test_each_killed_worker_is_started_again(workers):
    with pytest.raises(LostError, match=KILLED):
        workers.submit(os._exit, 1).result()
    assert workers.submit(os.getpid).result() != os.getpid()


class Losing(Executor):
    """Loses every second call."""

    calls = 0

    def submit(self, call, /, *args, **kwargs):
        future = Future()
        self.calls += 1
        if self.calls % 2:
            future.set_result(call(*args, **kwargs))
        else:
            future.set_exception(LostError("it took longer than 1 s to read, tried 3 times"))
        return future


def test_lost_ranks_are_named_and_the_others_reported(real_traces):
    seen = []
    run = load([real_traces / STRAGGLER], executor=Losing(), digest=recording, progress=lambda *call: seen.append(call))
    assert len(run.digested) == 2
    assert sum("was not read: it took longer than 1 s" in finding.text for finding in run.findings) == 2
    assert seen[-1][0].startswith("4 of 4 traces, 2 failed: ")


@pytest.mark.parametrize(
    ("where", "error"), [("local:2", "not a cluster"), ("tcp://127.0.0.1:9", "no Dask scheduler answers at")]
)
def test_what_is_no_cluster(where, error, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.2)
    with pytest.raises((UsageError, RunError), match=error), connected(where, LIMITS, pytest.fail):
        pass


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError) as raised, connected("local", LIMITS, pytest.fail):
        pass
    assert raised.value.message == "--cluster needs dask.distributed, which is not installed"
    assert raised.value.hint == "pip install 'dptune[cluster]'"


def test_a_scheduler_without_workers():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=0, processes=False, protocol="tcp", scheduler_kwargs={"dashboard_address": cluster._ANY_PORT}
        ) as empty,
        pytest.raises(RunError, match=r"^no Dask worker connected within 0\.1 s$") as raised,
        connected(empty.scheduler_address, Limits(wait_s=0.1, rank_timeout_s=600, attempts=2, workers=1), pytest.fail),
    ):
        pass
    assert raised.value.hint == "start some: `dask worker ADDRESS --nthreads 1`"


def test_local_workers_that_do_not_start(monkeypatch):
    distributed = pytest.importorskip("distributed")

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(distributed, "LocalCluster", full)
    with (
        pytest.raises(RunError, match=r"did not start: .*No space left") as raised,
        connected("local", LIMITS, pytest.fail),
    ):
        pass
    assert raised.value.hint == "read with --jobs instead"


@pytest.mark.filterwarnings("ignore:unclosed cluster:ResourceWarning")  # what SLURMCluster leaves when it raises
def test_slurm_workers_that_cannot_be_configured(monkeypatch):
    pytest.importorskip("dask_jobqueue")
    unknown = Limits(wait_s=600, rank_timeout_s=600, attempts=2, workers=1, slurm={"walltimes": "01:00:00"})
    with pytest.raises(UsageError, match=r"^SLURM workers cannot be configured: .*walltimes") as raised:
        cluster._slurm(unknown)
    assert raised.value.hint == "set [tool.dptune.cluster.slurm] in pyproject.toml"
    del raised
    gc.collect()
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(UsageError, match=r"^--cluster needs dask-jobqueue, which is not installed$"):
        cluster._slurm(unknown)


def versions(**worker):
    here = {"dptune": "1.0", "python": "3.11.2", "numpy": "2.4.6"}
    return {"client": {"packages": here}, "workers": {"tcp://w:1": {"packages": here | worker}}}


def test_other_versions():
    said = []
    cluster._check_versions(versions(), said.append)
    assert not said
    cluster._check_versions(versions(numpy="1.26.4"), said.append)
    assert said == ["worker tcp://w:1 has numpy 1.26.4, not 2.4.6: figures may differ in the last digit"]
    for installed, what in (("0.9", "dptune 0.9"), (None, "no dptune")):
        with pytest.raises(RunError, match=f"worker tcp://w:1 has {what}, this machine dptune 1.0"):
            cluster._check_versions(versions(dptune=installed), said.append)


class Stalled(BaseHTTPRequestHandler):
    """A store that says how large a file is and never sends it."""

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self):
        self.server.asked.set()
        self.server.over.wait()

    def log_message(self, *_):
        pass


@pytest.mark.thorough
def test_an_interrupt_leaves_nothing_running():
    psutil = pytest.importorskip("psutil")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stalled)
    server.asked, server.over = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_port}/rank_{rank}.json" for rank in (0, 1)]
    command = [DPTUNE, "report", *urls, "--no-tui", "--no-cache", "--cluster", "local", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as asking:
        assert server.asked.wait(300)
        started = psutil.Process(asking.pid).children(recursive=True)
        os.killpg(asking.pid, signal.SIGINT)  # as a terminal does
        _, errors = asking.communicate(timeout=300)
    server.over.set()
    server.shutdown()
    server.server_close()
    assert asking.returncode == 130
    assert b"Traceback" not in errors
    assert started
    _, alive = psutil.wait_procs(started, timeout=300)
    assert not alive


SBATCH = """#!/bin/sh
cp "$1" {folder}/job.sh
nohup sh {folder}/job.sh > {folder}/job.log 2>&1 &
echo $! > {folder}/job.pid
echo "Submitted batch job 17"
"""
SCANCEL = "#!/bin/sh\nkill $(cat {folder}/job.pid)\n"


@pytest.mark.thorough
def test_slurm(real_traces, tmp_path, monkeypatch, capsys):
    pytest.importorskip("dask_jobqueue")
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "dptune.toml").write_text(
        f'[cluster]\nworkers = 1\nslurm = {{ queue = "cpu", memory = "2GB", log_directory = "{tmp_path}" }}\n'
    )
    monkeypatch.chdir(tmp_path)
    main(["report", str(real_traces / STRAGGLER), "--no-cache", "--format", "json", "--cluster", "slurm"])
    report = json.loads(capsys.readouterr().out)
    assert len(report["measured"]["ranks"]) == 4
    assert (tmp_path / "job.pid").exists()
