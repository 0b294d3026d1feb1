"""What a user may name, and what is said of ranks. Traces here are a few lines each."""

import errno
import gzip
import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from dptune import trace
from dptune.errors import RunError, TraceError, UsageError
from dptune.runfile import json_files
from dptune.runfile.communication import DdpFacts
from dptune.runfile.facts import Facts, OptimizerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.record import RunRecord
from dptune.runfile.window import Window
from dptune.trace import load
from dptune.trace.loading import progress
from dptune.trace.loading.gathering import with_events

from .conftest import SAMPLE

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def write(path: Path, rank: int | None = None, world: int | None = None, name: str = "aten::add") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"schemaVersion": 1, "traceEvents": [{**EVENT, "name": name}]}
    if rank is not None:
        document["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def ranks(run) -> dict[int, str]:
    return {rank.rank: Path(rank.source).name for rank in run.ranks}


def codes(run) -> list[str]:
    return [finding.code for finding in run.findings]


def test_distributed_info_goes_before_the_file_name(tmp_path):
    run = load([write(tmp_path / "rank7.json", rank=0, world=1)])
    assert ranks(run) == {0: "rank7.json"}
    assert run.rank_basis == "distributedInfo in the trace"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3_trace.json", 3),
        ("rank-12.Apr_03_18_51.pt.trace.json.gz", 12),
        ("Baseline-rank6-chrome-trace.json.gz", 6),
        ("gpu-rank-00-trace.json", 0),
        ("worker5.1623.pt.trace.json", 5),
        ("profile_Rank_4.json", 4),
    ],
)
def test_a_rank_in_the_file_name(tmp_path, name, rank):
    run = load([write(tmp_path / name)])
    assert list(ranks(run)) == [rank]
    assert run.rank_basis == "the file names"


def test_a_rank_in_the_folder_name(tmp_path):
    run = load([write(tmp_path / "rank_2" / "trace.json"), write(tmp_path / "rank_0" / "trace.json")])
    assert [rank.rank for rank in run.ranks] == [0, 2]
    assert run.rank_basis == "the folder names"


def test_without_any_rank_the_order_counts_and_is_said(tmp_path):
    run = load([write(tmp_path / "b.json"), write(tmp_path / "a.json")])
    assert ranks(run) == {0: "b.json", 1: "a.json"}
    assert run.rank_basis == "file order: the traces name no rank"


def test_missing_ranks_are_named(tmp_path):
    run = load([write(tmp_path / f"t{rank}.json", rank, 8) for rank in (0, 3, 4)])
    assert [f.text for f in run.findings] == ["ranks 1-2, 5-7 are missing: 3 of 8 ranks were given"]
    assert run.world_size == 8
    (missing,) = load([write(tmp_path / "many" / f"t{rank}.json", rank, 1000) for rank in (0, 999)]).findings
    assert missing.text == "ranks 1-998 are missing: 2 of 1,000 ranks were given"


def test_duplicate_ranks_are_named(tmp_path):
    run = load([write(tmp_path / "a.json", 1, 1), write(tmp_path / "b.json", 1, 1)])
    assert ranks(run) == {1: "a.json"}
    duplicate = next(f.text for f in run.findings if f.code == "rank-duplicate")
    assert "two files claim rank 1" in duplicate
    assert "b.json left out" in duplicate


def test_two_runs_of_the_same_ranks_are_one_finding(tmp_path):
    files = [write(tmp_path / run / f"t{rank}.json", rank, 4) for run in ("a", "b") for rank in range(4)]
    (duplicate,) = [f.text for f in load(files).findings if f.code == "rank-duplicate"]
    assert duplicate.startswith(
        "4 files are left out, because others claim the same ranks (0-3); pass the files of one"
    )
    assert duplicate.endswith("for rank 0, a/t0.json is used, b/t0.json left out")
    many = [write(tmp_path / f"{name}.json", 2, 4) for name in "cdefgh"]
    (duplicate,) = [f.text for f in load(many).findings if f.code == "rank-duplicate"]
    assert duplicate.startswith(
        "5 files are left out, because others claim the same rank (2); pass the files of one run"
    )
    assert [name in duplicate for name in ("c.json is used", "d.json", "f.json left out", "g.json")] == [True] * 3 + [
        False
    ]


def test_torchtitan_folder_reads_the_last_iteration(tmp_path):
    for iteration in (9, 10):
        for rank in range(2):
            write(tmp_path / f"iteration_{iteration}" / f"rank{rank}_trace.json", name=f"at_{iteration}")
    run = load([tmp_path])
    assert [trace.light.columns.names for trace in run.ranks] == [("at_10",), ("at_10",)]
    assert [f.text for f in run.findings] == ["read iteration_10; left out iteration_9"]


def test_tensorboard_and_hta_folders(tmp_path):
    write(tmp_path / "tb" / "host_101.1700000000.pt.trace.json", 0, 2)
    write(tmp_path / "tb" / "host_102.1700000000.pt.trace.json.gz", 1, 2)
    assert list(ranks(load([tmp_path / "tb"]))) == [0, 1]
    (tmp_path / "tb" / ".hidden.json").write_text("{}")
    assert codes(load([str(tmp_path / "tb")])) == []


def test_globs_and_repeated_files(tmp_path):
    for rank in range(11):
        write(tmp_path / f"r{rank}.json", rank, 11)
    run = load([str(tmp_path / "r*.json"), tmp_path / "r3.json"])
    assert list(ranks(run)) == list(range(11))
    assert codes(run) == []


@pytest.mark.parametrize("name", ["absent.json", "absent*.json"])
def test_a_path_to_nothing(tmp_path, name):
    with pytest.raises(RunError, match="does not exist") as error:
        load([tmp_path / name])
    assert error.value.hint


def test_a_folder_without_traces(tmp_path):
    with pytest.raises(RunError, match="holds no trace files"):
        load([tmp_path])


def test_one_unreadable_file_is_its_own_error_and_several_are_counted(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("hello")
    with pytest.raises(TraceError, match="an empty JSON object"):
        load([tmp_path / "a.json"])
    with pytest.raises(RunError, match=r"none of 2 files could be read; the first: .*a\.json"):
        load([tmp_path])


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "dptune-runs" / "2026-train"
    for rank in range(2):
        write(folder / f"rank-{rank:05d}.trace.json.gz", 5, name="light")
        write(folder / f"rank-{rank:05d}.detail.trace.json.gz", 5, name="detailed")
        json_files.write(
            folder / f"rank-{rank:05d}.facts.json", Facts(rank, world_size=2, windows=[Window("light", 7)])
        )
    json_files.write(folder / "run.json", RunRecord(world_size=2, command=["python", "train.py"]))
    return folder


def test_a_run_folder(run_folder):
    run = load([run_folder])
    assert run.rank_basis == "the run folder"
    assert [rank.light.columns.names for rank in run.ranks] == [("light",), ("light",)]
    assert [rank.detailed.columns.names for rank in run.ranks] == [("detailed",), ("detailed",)]
    assert sorted(run.facts) == [0, 1]
    assert run.record.command == ["python", "train.py"]
    assert run.sources == [str(run_folder)]
    assert (run.findings, run.world_size) == ([], 2)


def repeated(run_folder: Path, number: str, *ranks: int, steps: int = 3, ended: str = "complete") -> None:
    folder = run_folder / "repeats" / number
    folder.mkdir(parents=True)
    for rank in ranks:
        window = Window("untraced", 7, [steps] * 3)
        json_files.write(
            folder / f"rank-{rank:05d}.facts.json", Facts(rank, world_size=2, windows=[window], ended=ended)
        )


def test_further_processes_are_read_in_the_order_of_running(run_folder):
    """Those that have all ranks and came to all their steps."""
    repeated(run_folder, "10", 0, 1, steps=10)
    repeated(run_folder, "2", 0, 1, steps=2)
    repeated(run_folder, "3", 0)
    repeated(run_folder, "4", 0, 1, ended="script-ended")
    (run_folder / "repeats" / "2.txt").write_text("what it printed")
    (run_folder / "repeats" / "notes").mkdir()
    run = load([run_folder])
    assert [[facts.windows[0].durations_ns[0] for facts in once] for once in run.repeats] == [[2, 2], [10, 10]]
    assert [one.text.partition(" is not part of the step time: ")[::2] for one in run.findings] == [
        ("repeats/3", "its ranks are not those of the run"),
        ("repeats/4", "it did not reach all its steps"),
    ]
    assert {(one.code, one.level) for one in run.findings} == {("repeat-left-out", "info")}


def test_a_further_process_of_another_script_is_left_out(run_folder):
    """What it is told by both, and is not the same; and a copy of one that counts tells nothing more."""
    ours = Facts(0, torch="2.13.0", optimizers=[OptimizerFacts("AdamW")], loaders=[LoaderFacts(batch_size=64)])
    others = [
        {"loaders": [LoaderFacts(batch_size=32)]},
        {"torch": "2.9.1"},
        {"optimizers": [OptimizerFacts("SGD")]},
        {"loaders": [LoaderFacts(batch_size=32), LoaderFacts(batch_size=64)], "torch": "", "ddp": [DdpFacts("Net")]},
        {},
        {},
    ]
    (run_folder / "rank-00001.facts.json").unlink()
    json_files.write(run_folder / "rank-00000.facts.json", replace(ours, ddp=[DdpFacts("Net", gradient_bytes=4)]))
    for number, more in enumerate(others):
        windows = [Window("untraced", 7, [min(number, 4) + 1] * 3)]
        (run_folder / "repeats" / str(number)).mkdir(parents=True)
        one = replace(ours, windows=windows, ended="complete", **more)
        json_files.write(run_folder / "repeats" / str(number) / "rank-00000.facts.json", one)
    run = load([run_folder])
    assert [once[0].windows[0].durations_ns[0] for once in run.repeats] == [4, 5]
    left_out = [one.text for one in run.findings if one.code == "repeat-left-out"]
    assert [text.partition(" is not part of the step time: ")[2] for text in left_out] == [
        "it is of another script: its batch size is 32, and the run's 64",
        "it is of another script: its torch is 2.9.1, and the run's 2.13.0",
        "it is of another script: its optimizer is SGD, and the run's AdamW",
        "it is a copy of another",
    ]


def test_what_a_newer_dptune_wrote_is_said_and_not_read(run_folder):
    json_files.write(run_folder / "rank-00001.facts.json", Facts(1, schema_version="3.0\n::x", world_size=2))
    run = load([run_folder])
    assert sorted(run.facts) == [0]
    assert run.findings[0].text == (
        f"{run_folder.name}: rank-00001.facts.json has schema version '3.0\\n::x', but this version reads 0.x: "
        "update dptune"
    )


def test_a_folder_of_a_further_process_that_may_not_be_listed(run_folder, monkeypatch):
    repeated(run_folder, "1", 0, 1)
    repeated(run_folder, "2", 0, 1)
    iterdir = Path.iterdir

    def listing(path):
        if path.name in closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", listing)
    closed = ["1"]
    run = load([run_folder])
    assert (len(run.repeats), codes(run)) == (1, ["repeat-left-out"])
    assert run.findings[0].text == ("repeats/1 is not part of the step time: it cannot be read: Permission denied")
    closed = ["repeats"]
    assert load([run_folder]).repeats == []


def test_a_further_process_that_cannot_be_read_is_a_finding(run_folder):
    repeated(run_folder, "1", 0, 1)
    repeated(run_folder, "2", 0, 1)
    (run_folder / "repeats" / "1" / "rank-00001.facts.json").write_text("{")
    run = load([run_folder])
    assert (len(run.repeats), codes(run)) == (1, ["repeat-left-out"])
    assert run.findings[0].level == "info"


def test_further_processes_are_no_runs_of_their_own(run_folder, tmp_path):
    repeated(run_folder, "1", 0, 1)
    json_files.write(run_folder / "repeats" / "1" / "run.json", RunRecord(world_size=2))
    assert load([tmp_path]).sources == [str(run_folder)]


def test_the_folder_of_runs_leads_to_the_latest(run_folder):
    (run_folder.parent / "latest").write_text(run_folder.name + "\n")
    assert load([run_folder.parent]).sources == [str(run_folder)]


def test_a_process_that_was_not_recorded_is_named(run_folder):
    says = "rank 0: not recorded: run already has its recording"
    (run_folder / "rank-00000.unrecorded.txt").write_text(f"{says}\n{says}\n\n{'x' * 1000}\n" + "and more\n" * 100)
    found = [one for one in load([run_folder]).findings if one.code == "process-unrecorded"]
    assert [(one.level, one.text) for one in found] == [
        ("partial", says),
        ("partial", "x" * 300),
        ("partial", "and more"),
    ]


def test_of_a_line_without_end_no_more_is_read_than_is_printed(run_folder):
    with (run_folder / "rank-00000.unrecorded.txt").open("wb") as file:
        file.write(b"x" * 1000)
        file.truncate(50_000_000)
    tracemalloc.start()
    (found,) = (one for one in load([run_folder]).findings if one.code == "process-unrecorded")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.text == "x" * 300
    assert peak < 50_000_000


def test_a_run_folder_with_holes_is_read_and_they_are_named(run_folder):
    (run_folder / "rank-00000.trace.json.gz").unlink()
    (run_folder / "rank-00001.trace.json.gz").write_bytes(b"")
    (run_folder / "rank-00001.detail.trace.json.gz").unlink()
    (run_folder / "run.json").write_text("{")
    run = load([run_folder])
    assert [(rank.rank, rank.light.columns.names) for rank in run.ranks] == [(0, ("detailed",))]
    assert codes(run) == ["file-unreadable", "light-window-missing", "file-unreadable", "trace-missing"]
    assert run.record is None


def test_ranks_that_were_not_asked_for_are_not_missing(run_folder):
    for rank in range(2):
        json_files.write(
            run_folder / f"rank-{rank:05d}.facts.json", Facts(rank, world_size=8, windows=[Window("light", 7)])
        )
    json_files.write(run_folder / "run.json", RunRecord(world_size=8, ranks=[0, 1, 5]))
    run = load([run_folder])
    assert [(one.code, one.text) for one in run.findings] == [
        ("ranks-missing", "rank 5 is missing: 2 of 8 ranks were given"),
        ("ranks-sampled", "ranks 2-4, 6-7 were not recorded, as asked: what they did is not known"),
    ]


def test_facts_alone_are_a_run(run_folder):
    for path in run_folder.glob("*.gz"):
        path.unlink()
    run = load([run_folder])
    assert run.ranks == []
    assert codes(run) == ["trace-missing", "trace-missing"]


def test_the_detailed_window_is_read_only_when_asked_for(run_folder):
    for path in run_folder.glob("*.detail.*"):
        path.write_bytes(b"")
    run = load([run_folder])
    with pytest.raises(TraceError, match=r"is empty \(0 bytes\)"):
        _ = run.ranks[0].detailed


def test_folders_of_two_nodes_make_one_run(run_folder, tmp_path):
    other = tmp_path / "node1"
    other.mkdir()
    for path in run_folder.glob("rank-00001*"):
        path.rename(other / path.name)
    run = load([run_folder, other])
    assert list(ranks(run)) == [0, 1]
    assert codes(run) == []


def test_progress_counts_the_bytes_of_every_file(run_folder):
    seen = []
    sizes = [path.stat().st_size for path in sorted(run_folder.glob("rank-?????.trace.json.gz"))]
    load([run_folder], progress=lambda *call: seen.append(call))
    done = [done for _, done, _ in seen]
    assert {total for _, _, total in seen} == {sum(sizes)}
    assert done == sorted(done)
    assert {0, sizes[0], sum(sizes)} <= set(done)
    assert "rank-00000.trace.json.gz" in seen[0][0]
    assert "rank-00001.trace.json.gz" in seen[-1][0]


def test_odd_types_of_identities(tmp_path):
    events = [
        {**EVENT, "cat": "kernel", "pid": pid, "tid": tid, "args": {"device": device, "stream": stream}}
        for pid, tid, device, stream in [
            (None, 2**80, "3", "7"),
            ("0", "stream 7", None, ""),
            (-1, 1.5, 2.0, [1]),
        ]
    ] + [{**EVENT, "cat": None, "name": None}, {**EVENT, "args": []}, {**EVENT, "args": "x"}, {**EVENT, "ts": None}]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = load([path]).ranks[0].light
    columns = trace.columns
    assert [columns.labels[at] for at in columns.tid_id[:3]] == [str(2**80), "stream 7", "1.5"]
    assert columns.device[:3].tolist() == [3, -1, 2]
    assert columns.stream[:3].tolist() == [7, -1, -1]
    assert (trace.events, len(columns)) == (7, 6)
    run = load([path])
    assert codes(run) == ["events-unreadable", "fields-unreadable"]
    assert run.findings[1].text == (
        "odd.json: 5 of 6 events have unreadable fields (`stream`, `args`, `name`, `cat`), treated as missing"
    )


def recording(folder: Path, *ranks: int) -> Path:
    folder.mkdir(parents=True)
    json_files.write(folder / "run.json", RunRecord())
    for rank in ranks:
        json_files.write(
            folder / f"rank-{rank:05d}.facts.json", Facts(rank, world_size=4, windows=[Window("light", 7)])
        )
        write(folder / f"rank-{rank:05d}.trace.json.gz")
    return folder


def test_two_recordings_are_not_mixed(tmp_path):
    paths = [recording(tmp_path / name, 0, 1) for name in ("a", "b")]
    with pytest.raises(RunError, match="are different recordings: both hold rank 0"):
        load(paths)


def test_the_folders_of_two_nodes_are_one_run(tmp_path):
    run = load([recording(tmp_path / "node0", 0, 1), recording(tmp_path / "node1", 2, 3)])
    assert sorted(ranks(run)) == [0, 1, 2, 3]


def test_the_file_latest_stands_for_the_run_it_names(tmp_path):
    recording(tmp_path / "runs" / "new", 0)
    (tmp_path / "runs" / "latest").write_text("new\n")
    assert sorted(ranks(load([tmp_path / "runs" / "latest"]))) == [0]


@pytest.fixture
def recorded(tmp_path):
    """A run folder as `dptune profile` leaves it."""
    folder = tmp_path / "run"
    shutil.copytree(SAMPLE, folder, ignore=shutil.ignore_patterns(".dptune-cache"))
    (folder / "links.json").write_text("{}")
    (folder / "live").mkdir()
    (folder / "rank-00000.log").write_text("a line")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("order", [1, -1])
def test_a_shell_that_names_all_files_of_a_run_folder_names_the_folder(recorded, order):
    whole, spread = load([recorded]), load(sorted(recorded.iterdir())[::order])
    assert ranks(spread) == ranks(whole)
    assert spread.findings == whole.findings
    assert (spread.sources, spread.rank_basis) == (whole.sources, whole.rank_basis)
    assert [rank.detailed_source for rank in spread.ranks] == [rank.detailed_source for rank in whole.ranks]


@pytest.mark.long
def test_a_folder_and_a_trace_of_it_are_the_folder(recorded, monkeypatch):
    monkeypatch.chdir(recorded.parent)
    trace = recorded / "rank-00001.trace.json.gz"
    for named in ([recorded, trace], [trace, recorded], [trace, "run", recorded], ["run/run.json", trace, trace]):
        assert ranks(load(named)) == ranks(load([recorded]))


def test_a_trace_of_a_folder_by_itself_and_one_that_is_none_of_it(recorded):
    assert load([recorded / "rank-00001.trace.json.gz"]).rank_basis != "the run folder"
    other = write(recorded / "other.json", rank=7, world=8)
    assert ranks(load([recorded, other]))[7] == "other.json"


def test_digits_that_are_no_number(tmp_path):
    for name in ("a\u00b2.json", "a\u0663.json", "a3.json"):
        write(tmp_path / name)
    assert len(load([str(tmp_path)]).ranks) == 3


@pytest.mark.long
def test_what_is_kept_of_links_and_proofs_is_no_trace(tmp_path):
    """Beside the runs and in them; and of two runs that lie side by side, trials are none."""
    sample = Path(__file__).resolve().parents[2] / "sample_traces" / "healthy"
    for name in ("a", "b"):
        shutil.copytree(sample, tmp_path / name, ignore=shutil.ignore_patterns(".dptune-cache"))
        trial = tmp_path / name / "verified" / "ddp.no_sync=true" / "trial-001-A"
        shutil.copytree(sample, trial, ignore=shutil.ignore_patterns(".dptune-cache", "verified"))
        shutil.copytree(sample, tmp_path / name / "tuned-2" / "trials" / "trial-001-A" / "run")
        shutil.copy(sample / "links.json", tmp_path / "links.json")
    with pytest.raises(RunError, match="holds 2 runs") as refused:
        load([tmp_path])
    assert refused.value.hint == f"pass one of them: {tmp_path / 'b'}; `dptune history {tmp_path}` lists them"
    assert sorted(ranks(load([tmp_path / "a"]))) == [0, 1]


@pytest.mark.parametrize("rank", [10**30, 10**15, str(10**30), 2e6])
def test_a_rank_that_no_run_has_is_ignored_and_named(tmp_path, rank):
    write(tmp_path / "rank0.json", rank=0, world=2)
    write(tmp_path / "rank1.json", rank=rank, world=2)
    run = load([tmp_path])
    assert ranks(run) == {0: "rank0.json", 1: "rank1.json"}
    (finding,) = run.findings
    assert finding.text == (
        "rank1.json: the rank in distributedInfo is above 1,000,000 and is ignored; rank 1 from the file "
        "names is used instead"
    )


@pytest.mark.parametrize("rank", [-1, True, 0.5, "one", [1], {}, -(2**70)])
def test_a_rank_that_is_none_is_named_with_what_is_used(tmp_path, rank):
    write(tmp_path / "a.json", rank=0, world=2)
    write(tmp_path / "b.json", rank=rank, world=2)
    run = load([tmp_path])
    assert ranks(run) == {0: "a.json", 1: "b.json"}
    (finding,) = run.findings
    assert finding.text == (
        f"b.json: the rank in distributedInfo is invalid ({json.dumps(rank)}) and is ignored; rank 1 from "
        "the order of the files is used instead"
    )


@pytest.mark.parametrize("world", [0, -2, True, 1.5, "two", [2]])
def test_a_world_size_that_is_none_is_named(tmp_path, world):
    run = load([write(tmp_path / "rank0.json", rank=0, world=world)])
    assert run.world_size is None
    (finding,) = run.findings
    assert finding.text == (
        f"rank0.json: the world size in distributedInfo is invalid ({json.dumps(world)}) and is ignored"
    )


def test_distributed_info_of_another_type_is_named(tmp_path):
    content = {"schemaVersion": 1, "distributedInfo": ["rank", 1], "traceEvents": [EVENT]}
    (tmp_path / "rank3.json").write_text(json.dumps(content))
    (finding,) = load([tmp_path / "rank3.json"]).findings
    assert finding.text == (
        "rank3.json: distributedInfo is not a JSON object and is ignored; rank 3 from the file names is used instead"
    )


def test_world_sizes_that_differ_are_named(tmp_path):
    for rank, world in enumerate([2, 4]):
        write(tmp_path / f"rank{rank}.json", rank=rank, world=world)
    run = load([tmp_path])
    assert run.world_size == 4
    assert run.findings[0].text == "the traces give different world sizes (2, 4): 4 is used"


@pytest.mark.parametrize("events", [None, True, 5, "x", {"a": 1}])
def test_events_that_are_no_list_are_said_to_be_none(tmp_path, events):
    (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with pytest.raises(
        TraceError,
        match=r"rank0\.json has the header of a torch.profiler trace, but its traceEvents is .*, not a list",
    ):
        load([tmp_path / "rank0.json"])


def test_a_rank_beyond_its_own_world_size_is_named(tmp_path):
    run = load([write(tmp_path / "rank0.json", rank=5, world=2)])
    assert "distributedInfo gives rank 5 and world size 2, which contradict each other" in run.findings[0].text


def test_a_world_size_that_no_run_has_is_ignored_and_named(tmp_path):
    run = load([write(tmp_path / "rank0.json", rank=0, world=10**30)])
    assert run.world_size is None
    assert codes(run) == ["world-size-impossible"]


def test_a_rank_in_a_file_name_that_no_run_has_is_ignored_and_named(tmp_path):
    write(tmp_path / "rank0.json")
    write(tmp_path / f"rank{10**30}.json")
    run = load([tmp_path])
    assert list(ranks(run)) == [0, 1]
    (finding,) = run.findings
    assert "the rank in the file name is above 1,000,000 and is ignored" in finding.text


STRAY = [
    ("config.json", '{"lr": 0.1, "steps": [1, 2]}'),
    ("metrics.json", '[{"loss": 1.5}]'),
    ("viewer.json", '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'),
]


@pytest.mark.parametrize(("name", "text"), STRAY)
def test_json_of_something_else_beside_traces_is_named_and_no_damage(tmp_path, name, text):
    write(tmp_path / "rank0.json")
    (tmp_path / name).write_text(text)
    (finding,) = load([tmp_path]).findings
    assert (finding.code, finding.level) == ("file-not-a-trace", "info")
    assert name in finding.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rank1.json", STRAY[0][1]),  # named as a rank's trace is
        ("node.pt.trace.json", STRAY[0][1]),
        ("config.json", STRAY[0][1][:-5]),  # cut off: what it was is not known
        ("metrics.json", STRAY[1][1][:-5]),
        ("viewer.json", STRAY[2][1][:-5]),
        ("empty.json", "{}"),
        ("nothing.json", ""),
    ],
)
def test_what_may_have_been_a_trace_is_damage(tmp_path, name, text):
    write(tmp_path / "rank0.json")
    (tmp_path / name).write_text(text)
    assert ("file-unreadable", "partial") in [(one.code, one.level) for one in load([tmp_path]).findings]


def test_events_of_a_rank_that_the_run_does_not_have():
    with pytest.raises(UsageError, match="no rank 7 was read") as error:
        with_events(load([SAMPLE]), [1, 7])
    assert error.value.hint == "these were: 0-1"


def test_a_name_that_reading_traces_does_not_have():
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = trace.Nonsense


@pytest.mark.parametrize(
    ("total", "seconds", "words"),
    [
        (1024, 4.0, "12 of 1,024 traces, 1 failed, 3.0 per second: rank12.json"),
        (1024, 0.5, "12 of 1,024 traces, 1 failed: rank12.json"),  # too early for a rate
        (63, 4.0, "12 of 63 traces, 1 failed: rank12.json"),
    ],
)
def test_how_far_reading_has_come(monkeypatch, total, seconds, words):
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    assert progress.Pace(total, done=12, failed=1, since=0.0).words("rank12.json") == words
