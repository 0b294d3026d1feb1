"""`dptune report` of dumps of the flight recorder, alone and beside traces."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from dptune.measured.flight import FlightFigures

from .. import in_process  # noqa: TID252 - tests are no installed package
from ..measure.handmade import all_reduce, launch, load_events, step  # noqa: TID252
from ..measure.test_flight import call  # noqa: TID252 - the same dumps

DUMPS = Path(__file__).parents[1] / "trace" / "flight_dumps"
SMALL = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "same-order"


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_folder_of_dumps_names_the_rank_that_hangs(form: str) -> None:
    done = in_process.dptune("report", str(DUMPS / form), "--width", "100")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Flight recorder: 3 ranks, 16 calls"
    assert lines[1].startswith(
        "  Rank 2 hangs outside of collectives after barrier #4 of group 0 (default_pg): ranks 0-1"
    )
    assert (
        "Unfinished: all_reduce #5 (19.5 KiB) in group 0 (default_pg). Called by ranks 0-1; not called by"
        in done.stdout
    )


def test_json_holds_the_figures(tmp_path: Path) -> None:
    done = in_process.dptune("report", str(DUMPS / "json"), "--format", "json", "-o", str(tmp_path / "f.json"))
    assert done.returncode == 0
    assert FlightFigures.model_validate_json((tmp_path / "f.json").read_text()).culprits[0].rank == 2


def test_an_unreadable_dump_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    shutil.copytree(DUMPS / "pickle", tmp_path / "dumps")
    bad = tmp_path / "dumps" / "pickle_trace_rank_1"
    bad.write_bytes(bad.read_bytes()[:600])
    done = in_process.dptune("report", str(tmp_path / "dumps"), "--width", "200")
    assert done.returncode == 0
    assert "Flight recorder: 2 ranks" in done.stdout
    assert "pickle_trace_rank_1 cannot be read: the pickle is damaged" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "html"], "dumps and logs of collectives cannot be shown as html"),
        ([str(SMALL), "-o", "/dev/null"], "text of dumps with traces is written to stdout only"),
        ([str(DUMPS / "json")], "two dumps of rank 0"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    done = in_process.dptune("report", str(DUMPS / "pickle"), *words, "--no-cache")
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("words", [[], ["--detail-ranks", "0"]])
def test_beside_traces_calls_are_matched_by_group_and_number(words: list[str], tmp_path: Path) -> None:
    """Two ranks that all-reduce once in each step, for 50 and 70 us: the dumps have no durations, the traces do."""
    traces, dumps = tmp_path / "traces", tmp_path / "dumps"
    traces.mkdir()
    dumps.mkdir()
    ranks = []
    for rank in range(2):
        events = []
        for number in range(4):
            at = 1000 * number
            reduced = all_reduce(at + 100, at + 150 + 20 * rank, number + 1, 1000, "0", 2)
            reduced["args"]["Seq"] = number + 1
            events += [step(number, at, at + 900), launch(number + 1, at + 5, at + 6), reduced]
        ranks.append(events)
        entries = [call("0", number, "scheduled") for number in (2, 3, 9)]
        (dumps / f"t_{rank}").write_text(json.dumps({"version": "2.9", "pg_config": {}, "entries": entries}))
    load_events(traces, *ranks)
    done = in_process.dptune("report", str(traces), str(dumps), "--no-cache", "--no-tui", "--width", "120", *words)
    assert done.returncode == 0, done.stderr
    assert "4 calls of the dumps were found in the traces, by process group and sequence number." in done.stdout
    assert re.search(r"all_reduce +0 \(default_pg\) +3.91 KiB +2 +3 +0.05 +0.07$", done.stdout, re.MULTILINE)
    both = in_process.dptune("report", str(traces), str(dumps), "--no-cache", "--format", "json", *words)
    alone = in_process.dptune("report", str(traces), "--no-cache", "--format", "json", *words)
    written = json.loads(both.stdout)
    assert written.keys() == {"report", "flight"}
    assert written["report"] == json.loads(alone.stdout)
    assert FlightFigures.model_validate(written["flight"]).traced == 4
