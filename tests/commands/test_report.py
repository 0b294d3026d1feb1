from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest

from dptune.advice import Report
from dptune.cli import main
from dptune.commands.shared.reading import recorded
from dptune.runfile import json_files
from dptune.runfile.record import RunRecord

from .. import reading  # noqa: TID252 - tests are no installed package

SMALL = Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "same-order"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_text_goes_to_stdout_and_nothing_to_stderr(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces)]) == 0
    first_screen = capsys.readouterr()
    assert " 2 ranks · " in first_screen.out.splitlines()[0]
    assert len(first_screen.out.splitlines()) <= 24
    assert main(["report", "--full", str(traces)]) == 0
    whole = capsys.readouterr()
    assert whole.out.startswith("Run ")
    assert "Ranks (2)" in whole.out
    for printed in (first_screen, whole):
        assert "\x1b" not in printed.out
        assert printed.err == ""


def test_one_section_is_printed_alone(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--section", "ranks", str(traces)]) == 0
    section = capsys.readouterr().out
    assert section.startswith("Ranks (2)")
    assert "Step time breakdown" not in section


def test_a_section_with_nothing_to_show_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--section", "inferred", "--no-cache", str(SMALL)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "dptune: nothing to show in this report: inferred" in printed.err


def test_tokens_samples_and_a_price_are_taken_from_the_command_line(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tokens-per-step", "4096", "--samples-per-step", "512", "--gpu-hour-price", "2.5"]
    assert main(["report", str(traces), "--no-cache", "--format", "json", *options]) == 0
    report = Report.model_validate_json(capsys.readouterr().out)
    found, cost = report.measured.efficiency, report.cost
    assert found.tokens_per_step == 4096
    assert found.tokens_per_s == pytest.approx(4096 / found.step_ns * 1e9)
    assert report.measured.samples_per_step == 512
    assert found.samples_per_s == pytest.approx(512 / found.step_ns * 1e9)
    assert not report.measured.samples_inferred
    assert cost is not None
    assert cost.per_1000_steps == pytest.approx(1000 * found.step_ns / 3600e9 * cost.devices * 2.5)
    wrongs = (("--tokens-per-step", "0"), ("--samples-per-step", "x"))
    for option, wrong in (*wrongs, ("--gpu-hour-price", "nan"), ("--gpu-hour-price", "-1")):
        assert main(["report", str(traces), f"{option}={wrong}"]) == 2
        assert option in capsys.readouterr().err


def test_samples_of_a_recorded_loader_win_and_a_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SMALL), "--no-cache", "--section", "efficiency", "--samples-per-step", "999"]) == 0
    printed = capsys.readouterr()
    assert "--samples-per-step 999 is ignored: the recorded DataLoader shows " in printed.err
    assert "999" not in printed.out


def test_json_is_a_report_and_nothing_else(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces), "--format", "json"]) == 0
    said = capsys.readouterr()
    report = Report.model_validate_json(said.out)
    assert [rank.rank for rank in report.measured.ranks] == [0, 1]
    assert said.err == ""


def test_the_account_of_a_made_trace_reads_as_it_was_made(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--full", str(traces)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    # Three steps of 1 ms; the last ends with its work, at 0.8 ms, and is left out: 0.5 and 0.3 of 1 ms.
    assert "█ compute 0.50 ms 50.0 %" in said
    assert "▓ exposed communication 0.30 ms 30.0 %" in said
    assert "The mean step takes 1.00 ms." in said
    assert "the last traced step (3) is excluded from all figures" in said


def test_a_file_gets_the_text_without_colours(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces), "-o", "out.txt"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "dptune: wrote out.txt\n"
    assert " 2 ranks · " in (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()[0]


def test_width_folds_the_text(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longest = []
    for width in ("50", "120"):
        assert main(["report", str(traces), "--full", "--width", width]) == 0
        rows = capsys.readouterr().out.splitlines()
        longest.append(max(len(row) for row in rows if str(traces) not in row))
    assert longest[0] <= 50 < longest[1] <= 120


def test_without_a_path_the_latest_recording_is_read(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "dptune-runs"
    runs.mkdir()
    traces.rename(runs / "2026-01-01-train")
    (runs / "latest").write_text("2026-01-01-train\n", encoding="utf-8")
    assert main(["report"]) == 0
    assert " 2026-01-01-train · 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["recordings", "recordings/latest"])
def test_a_folder_of_recordings_stands_for_the_latest(name: str, traces: Path, tmp_path: Path) -> None:
    runs = tmp_path / "recordings"
    runs.mkdir()
    (runs / "latest").write_text("../elsewhere\n", encoding="utf-8")
    traces.rename(tmp_path / "elsewhere")
    assert recorded(name) == name  # no recording of dptune: whoever reads it says what it is
    json_files.write(tmp_path / "elsewhere" / "run.json", RunRecord())
    assert recorded(name) == Path("recordings/../elsewhere")
    assert recorded("recordings/../elsewhere") == "recordings/../elsewhere"


@pytest.mark.parametrize("name", ["nothing", "s3://bucket/latest", "x" * 300, "a\0b"])
def test_anything_else_is_as_it_is(name: str) -> None:
    assert recorded(name) == name


@pytest.mark.parametrize("verb", ["report", "check"])
@pytest.mark.parametrize(
    ("latest", "message"),
    [(None, "no recording in ./dptune-runs/"), ("gone", "names the run 'gone', which no longer exists")],
)
def test_without_a_recording_it_says_how_to_make_one(
    verb: str, latest: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if latest:
        (tmp_path / "dptune-runs").mkdir()
        (tmp_path / "dptune-runs" / "latest").write_text(latest, encoding="utf-8")
    assert main([verb]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "hint: record one with `dptune profile train.py`" in said.err
    assert said.out == ""


@pytest.mark.parametrize("verb", ["report", "check", "compare", "whatif"])
def test_an_empty_path_is_no_folder(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`dptune report "$RUN"` of a variable that is not set does not read what lies here."""
    more = {"compare": [""], "whatif": ["--sweep", "world_size=2,4"]}.get(verb, [])
    assert main([verb, "", *more]) == 2
    told = capsys.readouterr()
    assert told.err == "dptune: error: a path is empty\nhint: is a shell variable unset?\n"


@pytest.mark.parametrize("more", [["--format", "json"], ["--format", "html"], ["--patch"], []])
def test_a_dash_is_stdout(more: list[str], traces: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["report", str(traces), "-o", "-", *more])
    told = capsys.readouterr()
    assert len(told.out) > 100 or more == ["--patch"]
    assert "wrote -" not in told.err
    assert not (tmp_path / "-").exists()
    assert not Path("-").exists()


@pytest.mark.parametrize("verb", ["report", "check"])
def test_a_budget_of_no_figure_is_refused_before_anything_is_read(
    verb: str, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dptune.toml").write_text("[budget]\nstepms = 120\n", encoding="utf-8")
    assert main([verb, str(traces)]) == 2
    said = capsys.readouterr()
    assert "unknown budget 'stepms'" in said.err
    assert "hint: did you mean 'step_ms'?" in said.err
    assert said.out == ""


def test_what_is_not_a_trace_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    for path in ("notes.json", "missing.json"):
        assert main(["report", path, "--format", "json"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("dptune: error: ")
        assert "internal" not in said.err


def test_a_cut_trace_is_reported_as_partial(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = traces / "rank1_trace.json"
    path.write_bytes(path.read_bytes()[:-300])
    assert main(["report", "--full", str(traces)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Rank 1 is partial" in said
    assert "Reliable partly; see the limitations below" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "tui"], "the full-screen report cannot be shown: "),
        (["--format", "tui", "--no-tui"], "--format tui and --no-tui exclude each other"),
        (["--format", "tui", "-o", "x"], "--format tui and -o exclude each other"),
        (["-o", "."], "it is a folder"),
        (["--full", "--section", "ranks"], "--full and --section exclude each other"),
        (["--full", "--format", "json"], "--full prints text and takes no other format"),
        (["--section", "ranks", "--format", "html"], "--section prints text and takes no other format"),
        (["--patch", "--full"], "--patch prints a diff and takes no other format"),
        (["-o", "nowhere/x.txt"], "the folder nowhere does not exist"),
    ],
)
def test_what_cannot_be_shown_is_said_before_anything_is_read(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "not-even-there.json", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


ACCUMULATION = Path(__file__).parents[2] / "sample_traces" / "accumulation_without_no_sync"


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is read once for all tests that ask for a patch."""
    report = reading.sample(ACCUMULATION.name)[1]
    monkeypatch.setattr("dptune.commands.report.report_of", lambda paths, **how: report)


@pytest.fixture
def script(tmp_path: Path, once: None) -> Path:
    """The lines of a script that the sample's facts name, as old as can be: line 65 and the three after it."""
    path = tmp_path / "train.py"
    path.write_text("\n" * 64 + "l = DataLoader(d, 128)\n\nm = DDP(n)\no = AdamW(m.parameters())\n", encoding="utf-8")
    os.utime(path, (0, 0))
    return path


@pytest.mark.parametrize(
    ("chosen", "added"),
    [
        ([], {"o = AdamW(m.parameters(), fused=True)"}),
        (["DP603"], {"o = AdamW(m.parameters(), fused=True)"}),
        (["Small-Batch"], {"l = DataLoader(d, 256)"}),
        (["dp301", "no-sync-missing"], {"l = DataLoader(d, 256)"}),
    ],
)
def test_a_patch_is_of_all_that_leaves_learning_as_it_is_or_of_the_one_that_is_named(
    chosen: list[str], added: set[str], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for code in chosen for word in ("--advice", code)]
    assert main(["report", str(ACCUMULATION), "--no-cache", "--patch", *words]) == 0
    said = capsys.readouterr()
    assert {line[1:] for line in said.out.splitlines() if line.startswith("+") and "+++" not in line} == added
    assert ("no patch" in said.err) == (not chosen or "no-sync-missing" in chosen)
    left_out = "DP301 small-batch may change training results and is left out; to include it: --patch --advice DP301"
    assert (left_out in said.err) == (not chosen)
    assert ("DP301 small-batch may change training results. " in said.err) == (added == {"l = DataLoader(d, 256)"})
    assert "changed after" not in said.err


def test_what_has_no_patch_says_where_and_why_and_what_to_paste(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(ACCUMULATION), "--no-cache", "--patch", "--advice", "DP102"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    first, *paste = said.err.splitlines()
    assert first.startswith("dptune: ddp.no_sync in train.py:")
    assert first.endswith(": no patch: line 76 has no call of backward as a separate statement; by hand:")
    assert paste[0] == "    with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():"


def test_a_script_that_was_written_after_the_run_is_named(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.touch()
    assert main(["report", str(ACCUMULATION), "--no-cache", "--patch"]) == 0
    said = capsys.readouterr().err
    assert said.count("train.py was changed after the recording: line numbers may not match") == 1


def test_a_report_without_recommendations_has_none_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(ACCUMULATION.parent / "healthy"), "--no-cache", "--patch", "--advice", "DP102"]) == 2
    assert "hint: it has none: `dptune report` shows why" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["--patch", "--advice", "DP101"],
            "the report has no recommendation DP101",
            "its recommendations: DP102, DP603, DP301",
        ),
        (
            ["--patch", "--advice", "no-snyc-missing"],
            "unknown rule 'no-snyc-missing'",
            "did you mean 'no-sync-missing'?",
        ),
        (["--advice", "DP102"], "--advice requires --patch", "add it, or leave --advice out"),
    ],
)
@pytest.mark.usefixtures("once")
def test_advice_that_cannot_be_chosen(
    words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(ACCUMULATION), "--no-cache", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert f"hint: {hint}" in said.err
    assert said.out == ""


def test_advice_of_a_rule_that_could_not_be_asked_says_why(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(traces), "--patch", "--advice", "small-batch"]) == 2
    assert "the report has no recommendation DP301: " in capsys.readouterr().err


def test_names_that_ascii_cannot_hold_do_not_break_a_plain_terminal(traces: Path) -> None:
    traces = traces.rename(traces.parent / "größe")
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(plain):
        for chosen in ("text", "json"):
            assert main(["report", str(traces), "--format", chosen]) == 0
            print(flush=True)
    told = plain.buffer.getvalue().decode("ascii")
    assert "ms/step" in told
    assert "größe" in json.loads(told[told.index("\n{") :])["run"]["sources"][0]


def test_the_full_screen_report_offers_a_patch_only_where_the_script_is(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of traces alone there is no script; commands name the run as the user did."""
    shown: list[tuple[list[str], bool]] = []
    monkeypatch.setattr("dptune.present.terminal.no_interface", lambda: "")
    monkeypatch.setattr("dptune.present.tui.show", lambda report, run, paths, patches: shown.append((paths, patches)))
    assert main(["report", str(traces), "--format", "tui", "--no-cache"]) == 0
    monkeypatch.setattr("dptune.commands.report.can_patch", lambda report, root: True)
    assert main(["report", str(traces), "--format", "tui", "--no-cache"]) == 0
    assert shown == [([str(traces)], False), ([str(traces)], True)]
