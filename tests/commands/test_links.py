"""The command line of `dptune links`, and what `dptune report` makes of a sweep. The sweep itself: tests/capture."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dptune.capture.launch import Launch
from dptune.capture.links import SweepRequest
from dptune.cli import main
from dptune.commands.shared.sweeps import sweep_of
from dptune.measure.communication.links import fitted
from dptune.runfile import json_files, paths
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts
from dptune.runfile.links import KindTimes, LinkRecord, SizeTimes
from dptune.runfile.record import RunRecord

TIMES = ((1000, 1.5e-6), (10_000, 6e-6), (100_000, 51e-6))  # 1 us + bytes / (2 GB/s)
MIB = 1 << 20


def sweep(backend: str = "nccl", world_size: int = 2) -> LinkRecord:
    sizes = [SizeTimes(size, s, s, s, 7, 70) for size, s in TIMES]
    kinds = [KindTimes("all_reduce", [0, 1], sizes), KindTimes("p2p", left_out="gloo cannot: no such thing")]
    about = {"torch": "2.13.0", "hosts": ["a", "b"], "devices": ["cpu", "cpu"], "measured": "2026-11-20T10:00"}
    return LinkRecord(backend=backend, world_size=world_size, kinds=kinds, **about)  # type: ignore[arg-type]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[SweepRequest]:
    """What the ranks would be asked; they find `sweep()`."""
    monkeypatch.chdir(tmp_path)
    seen: list[SweepRequest] = []

    def measured(started: Launch, asked: SweepRequest, show: object) -> LinkRecord:
        seen.append(asked)
        return sweep()

    monkeypatch.setattr("dptune.capture.links.sweep", measured)
    return seen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds", "all_reduce,gather"], "unknown kind 'gather': all_reduce, all_gather"),
        (["--sizes", "4k,many"], "'many' is not a size from 4 bytes to 64g"),
        (["--sizes", "2"], "'2' is not a size"),
        (["--max-size", "65g"], "'65g' is not a size"),
        (["--sizes", "4k", "--max-size", "1m"], "not allowed with argument"),
        (["--repeats", "0"], "must be at least 1"),
        ([], "one rank has no links"),
        (["--nproc-per-node", "1"], "one rank has no links"),
        (["--nproc-per-node", "2", "-o", "."], "cannot write to .: it is a folder"),
    ],
)
def test_mistakes(
    words: list[str], message: str, asked: list[SweepRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["links", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert asked == []


@pytest.mark.parametrize(
    ("hosts", "ranks", "status", "said"),
    [
        (["a"], 3, 0, "dptune: 3 ranks, as dptune-runs/run has (--nproc-per-node N for others)"),
        (["a", "b"], 4, 2, "run has 4 ranks on 2 hosts: give the number of ranks on this host"),
        (["a"], 1, 2, "one rank has no links"),
    ],
)
def test_without_options_there_are_as_many_ranks_as_were_recorded(
    hosts: list[str], ranks: int, status: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dptune-runs" / "run").mkdir(parents=True)
    (tmp_path / "dptune-runs" / "latest").write_text("run")
    json_files.write(tmp_path / "dptune-runs" / "run" / "run.json", RunRecord(world_size=ranks, hosts=hosts))
    started = []
    monkeypatch.setattr("dptune.capture.links.sweep", lambda launch, *_: started.append(launch.ranks) or sweep())
    assert main(["links"]) == status
    assert said in capsys.readouterr().err
    assert started == [tuple(range(ranks))] * (status == 0)


@pytest.mark.parametrize(
    ("facts", "words", "kinds", "largest"),
    [
        ({"ddp": [DdpFacts("Net", gradient_bytes=1000)]}, [], 1, 16 * MIB),
        ({"ddp": [DdpFacts("Net", gradient_bytes=50 * MIB)]}, [], 1, 64 * MIB),
        ({"ddp": [DdpFacts("Net", gradient_bytes=500 * MIB)]}, [], 1, 256 * MIB),
        ({"ddp": [DdpFacts("Net", gradient_bytes=1000)]}, ["--kinds", "p2p"], 1, 256 * MIB),
        ({"ddp": [DdpFacts("Net", gradient_bytes=1000)]}, ["--nproc-per-node", "2"], 4, 256 * MIB),
        ({"ddp": [DdpFacts("Net", gradient_bytes=1000)], "engine": "deepspeed"}, [], 4, 256 * MIB),
        ({}, [], 4, 256 * MIB),
    ],
)
def test_of_a_run_of_ddp_alone_all_reduces_are_measured(
    facts: dict[str, Any], words: list[str], kinds: int, largest: int, asked: list[SweepRequest], tmp_path: Path
) -> None:
    """Up to all its gradients in one; who asks for something else gets that."""
    run = tmp_path / "dptune-runs" / "run"
    run.mkdir(parents=True)
    (tmp_path / "dptune-runs" / "latest").write_text("run")
    json_files.write(run / "run.json", RunRecord(world_size=2, hosts=["a"]))
    json_files.write(paths.facts(run, 0), Facts(0, **facts))
    assert main(["links", *words]) == 0
    assert (len(asked[0].kinds), asked[0].sizes[-1]) == (kinds, largest)
    assert asked[0].kinds[0] == ("p2p" if "--kinds" in words else "all_reduce")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nobody can make a file")
def test_a_file_that_cannot_be_made_is_refused_before_anything_is_measured(
    asked: list[SweepRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["links", "--nproc-per-node", "2", "-o", "/proc/links.json"]) == 2
    assert "cannot write into /proc: " in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ([], [4096 * 4**n for n in range(9)]),
        (["--max-size", "1m"], [4096 * 4**n for n in range(5)]),
        (["--max-size", "1k"], [1024]),
        (["--sizes", "1M,4096,64KiB,4k"], [4096, 65536, MIB]),
    ],
)
def test_sizes(words: list[str], sizes: list[int], asked: list[SweepRequest]) -> None:
    assert main(["links", "--nproc-per-node", "2", *words]) == 0
    assert list(asked[0].sizes) == sizes


def test_a_table_on_stdout_and_the_record_with_its_fits_in_a_file(
    asked: list[SweepRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["links", "--nproc-per-node", "2", "--kinds", "all-reduce,p2p"]) == 0
    assert asked[0].kinds == ["all_reduce", "p2p"]
    said = capsys.readouterr()
    assert said.out.startswith("Links between 2 ranks on 2 hosts, nccl, torch 2.13.0 (cpu)\n")
    assert max(map(len, said.out.splitlines())) <= 80
    rows = [line.split() for line in said.out.splitlines()]
    assert ["all_reduce", "97.7", "KiB", "0.05", "0.05", "0.05", "70"] in rows
    assert ["all_reduce", "0,1", "many", "3", "1.00", "2.00", "2.00", "2.00", "medium"] in rows
    assert "p2p: gloo cannot: no such thing" in said.out
    assert "group" not in said.out
    assert "dptune: wrote dptune-runs/links.json" in said.err
    assert json_files.read(Path("dptune-runs/links.json"), LinkRecord) == fitted(sweep())


def test_json_is_the_record(asked: list[SweepRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["links", "--nproc-per-node", "2", "--format", "json", "-o", "kept.json"]) == 0
    said = capsys.readouterr().out
    assert said == Path("kept.json").read_text(encoding="utf-8")
    assert json.loads(said)["kinds"][0]["fit"]["alpha_us"] == pytest.approx(1.0)


def swept_in(report: str) -> str:
    """The sweep that a report in JSON shows, by its file."""
    links = json.loads(report)["measured"]["links"] or []
    return next((one["source"] for one in links if one["basis"] == "sweep"), "")


def test_a_report_takes_the_sweep_it_is_given_or_finds(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, own, beside = tmp_path / "mine.json", traces / "links.json", traces.parent / "links.json"

    def source(*words: str) -> str:
        assert main(["report", str(traces), "--format", "json", "--no-cache", *words]) == 0
        return swept_in(capsys.readouterr().out)

    json_files.write(other, sweep())
    json_files.write(beside, sweep())
    assert source("--links", str(other)) == str(other)
    assert source() == ""  # a folder of anyone's traces is no run folder
    json_files.write(traces / "run.json", RunRecord(world_size=2))
    for rank, trace in enumerate(sorted(traces.glob("*trace*.json*"))):
        text = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
        paths.trace(traces, rank, "light").write_bytes(gzip.compress(text))
        trace.unlink()
    assert source() == str(beside)
    json_files.write(own, sweep())
    assert source() == str(own)
    json_files.write(own, sweep(world_size=4))
    assert source() == ""  # of another number of ranks
    assert main(["report", str(traces), "--full", "--width", "300", "--links", str(other)]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "By a sweep of `dptune links`:" in page
    assert f"Sweep: {other}, measured 2026-11-20T10:00." in page


def test_a_sweep_that_is_asked_for_and_does_not_fit_is_refused(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_files.write(tmp_path / "gloo.json", sweep("gloo"))
    for words, message in (
        (
            ["--links", str(tmp_path / "gloo.json")],
            "was measured with gloo on 2 ranks, but the run used nccl on 2 ranks",
        ),
        (["--links", str(tmp_path / "none.json")], "none.json cannot be read: No such file or directory\n"),
    ):
        assert main(["check", str(traces), *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("beside_at", "world_size", "expected"), [("12:00", 2, "beside"), ("08:00", 2, "inside"), ("12:00", 4, "inside")]
)
def test_of_two_sweeps_of_the_same_ranks_the_later_one_counts(
    tmp_path: Path, beside_at: str, world_size: int, expected: str
) -> None:
    """`dptune profile` wrote one into the folder at 10:00; `dptune links` writes beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    json_files.write(folder / paths.RUN_JSON, RunRecord())
    json_files.write(folder / "links.json", replace(sweep(), measured="2026-11-20T10:00:00+00:00"))
    beside = replace(sweep(world_size=world_size), measured=f"2026-11-20T{beside_at}:00+00:00")
    json_files.write(tmp_path / "links.json", beside)
    found = sweep_of([folder], None)
    assert found is not None
    assert found.source == str((tmp_path if expected == "beside" else folder) / "links.json")
