"""What is said at the end of a recording."""

from pathlib import Path

import pytest

from dptune.capture import epilogue
from dptune.capture.session import Recording
from dptune.runfile import paths
from dptune.runfile.record import Ending

LINKS = "tip: run `dptune links` once; predictions need the link's latency and bandwidth"


def said(folder: Path, ranks: int) -> list[str]:
    folder.mkdir(parents=True)
    for rank in range(ranks):
        paths.trace(folder, rank, "light").touch()
    return epilogue.lines(Recording(folder, Ending("complete", 0), list(range(ranks)), complete=True))


@pytest.mark.parametrize(
    ("runs", "ranks", "told"), [("dptune-runs", 2, True), ("mine", 2, False), ("dptune-runs", 1, False)]
)
def test_the_links_are_to_be_measured_where_reports_look_for_them(tmp_path, runs, ranks, told):
    lines = said(tmp_path / runs / "run", ranks)
    assert (LINKS in lines) == told
    assert lines[-1] == f"next: dptune report {tmp_path / runs / 'run'}"


def test_links_that_were_measured_need_no_other_time(tmp_path):
    (tmp_path / "dptune-runs").mkdir()
    (tmp_path / "dptune-runs" / "links.json").write_text("{}")
    assert LINKS not in said(tmp_path / "dptune-runs" / "run", 2)
