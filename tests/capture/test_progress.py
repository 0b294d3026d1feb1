from __future__ import annotations

import io
import json
from pathlib import Path

from dptune.capture.progress import ProgressLine, RankStatus, listen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(rank: int, step: int, phase: str) -> RankStatus:
    return RankStatus(rank, 1, step, phase, None)


def test_the_slowest_rank_is_shown() -> None:
    terminal = Terminal()
    ProgressLine(35, stream=terminal).show([at(0, 9, "untraced"), at(1, 4, "warm-up")])
    assert terminal.getvalue() == "\r\x1b[Kdptune: step 4/35 · warm-up\r"


def test_elsewhere_than_on_a_terminal_there_is_one_plain_line_per_window() -> None:
    log = io.StringIO()
    line = ProgressLine(35, stream=log)
    for said in (at(0, 0, "starting"), at(0, 1, "warm-up"), at(0, 2, "warm-up"), at(0, 6, "untraced")):
        line.show([said])
    line.clear()
    assert log.getvalue().splitlines() == [
        "dptune: waiting for the first optimizer step",
        "dptune: step 1/35 · warm-up",
        "dptune: step 6/35 · untraced",
    ]


def test_steps_made_while_the_others_come_to_the_end_are_not_counted() -> None:
    log = io.StringIO()
    ProgressLine(35, stream=log).show([at(0, 37, "done")])
    assert log.getvalue() == "dptune: step 35/35 · done\n"


def test_a_recording_that_needs_fewer_steps_is_done_at_the_last() -> None:
    log = io.StringIO()
    ProgressLine(50, stream=log).show([at(0, 35, "done")])
    assert log.getvalue() == "dptune: step 35/35 · done\n"


def test_quiet_says_nothing() -> None:
    terminal = Terminal()
    line = ProgressLine(35, quiet=True, stream=terminal)
    line.show([at(0, 1, "warm-up")])
    line.clear()
    assert terminal.getvalue() == ""


def test_half_written_words_are_passed_over(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    word = {"rank": 1, "pid": 7, "step": 3, "phase": "light", "where": None, "claimed": True}
    (live / "pid-7.json").write_text(json.dumps(word))
    (live / "pid-8.json").write_text('{"rank": 0, "pi')
    assert listen(live) == [RankStatus(1, 7, 3, "light", None, claimed=True)]


def test_who_is_no_rank_is_shown_only_until_there_is_one(tmp_path: Path) -> None:
    def write(**word: object) -> None:
        whole = {"rank": 0, "step": 0, "phase": "starting", "where": None, "claimed": False, **word}
        (tmp_path / f"pid-{word['pid']}.json").write_text(json.dumps(whole))

    write(pid=7)
    assert [one.pid for one in listen(tmp_path)] == [7]
    write(pid=8, rank=1, step=2, claimed=True)
    assert [one.pid for one in listen(tmp_path)] == [8]
