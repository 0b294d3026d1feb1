"""The first screen: what it shows of real runs, and that it fits."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dptune import testing
from dptune.advice import Headline, Location, Report, Skipped
from dptune.advise.trust import PROFILER_CHEAP
from dptune.commands.report import SECTION_NAMES
from dptune.finding import Finding
from dptune.measured import StragglerFigures
from dptune.present import html, text
from dptune.present.first_screen import PARTS, first_screen, fix_of, verdict_role
from dptune.present.lines import command_line
from dptune.present.sections.first import _whole_clauses

from .. import reading  # noqa: TID252 - tests are no installed package
from .conftest import EVIL, account, make_report

SAMPLES = ("accumulation_without_no_sync", "healthy", "starved_loader", "tiny_buckets")
PUBLIC = (
    *("nanogpt_8xh100", "torchrec_straggler_4xv100"),
    pytest.param("torchrec_qcomm_a_4xv100", marks=pytest.mark.thorough),
)


def of_ranks(shares: list[tuple[float, float]], late: int | None = None) -> Report:
    """A report on ranks that communicate exposed, and wait for input, for these shares of a step."""
    accounts = [testing.account(exposed_share=exposed, input_share=waiting) for exposed, waiting in shares]
    more = {} if late is None else {"straggler": straggler(late)}
    measured = testing.measured_run(spent=accounts, world=len(accounts), **more)
    headline = Headline(
        label="Straggler", verdict="v.", cause="It sleeps." if late is not None else "", why="w", next="n"
    )
    return make_report().model_copy(update={"measured": measured, "headline": headline, "advice": []})


def straggler(rank: int) -> StragglerFigures:
    return testing.figures(
        StragglerFigures,
        rank=rank,
        lag_ns=5_000_000,
        mean_lag_ns=5_000_000.0,
        steps_share=1.0,
        late_share=1.0,
        waiting_share=0.2,
        differences=[],
        explained_share=0.0,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLES)
def test_it_fits_a_terminal_of_80_by_24(name: str) -> None:
    _, report = reading.sample(name)
    shown = text.first_screen(report).splitlines()
    assert len(shown) <= 24
    assert all(len(row) <= 80 for row in shown)


@pytest.mark.parametrize("name", PUBLIC)
def test_it_fits_for_public_traces(name: str, real_traces: Path) -> None:
    report = reading.reported(real_traces / name)
    shown = text.first_screen(report).splitlines()
    assert len(shown) <= 24
    assert all(len(row) <= 80 for row in shown)
    assert shown[0].startswith(f" {name} · ")


def test_it_says_what_ran_what_limits_it_and_what_to_do() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    shown = text.first_screen(report)
    assert shown.startswith(" train.py · 2 ranks · Intel Xeon (CPU, gloo) · torch 2.13.0 · 2026-11-22 04:00\n")
    assert "COMMUNICATION-BOUND    72.1 ms/step   14,200 samples/s" in shown  # 1,024 samples / 72.1 ms
    assert " 1  DP102 no-sync-missing    train.py:76  29-40 %     verified    unchanged" in shown
    command = re.sub(r" \\\n +", " ", shown)  # as a shell reads it
    assert re.search(r" Apply    dptune report \S+ --patch --advice DP102 \| git apply\n", command)
    assert "Next     DP102: In train.py:76, use `with model.no_sync()" in shown


@pytest.mark.parametrize("name", ["my train.py", "réseau [red].py", "it's.py"])
def test_a_script_with_spaces_in_its_name_is_named(report: Report, name: str) -> None:
    command = shlex.join(["torchrun", "--nproc-per-node", "2", f"/home/a b/{name}", "--x", "1"])
    run = report.run.model_copy(update={"command": command})
    assert text.first_screen(report.model_copy(update={"run": run})).startswith(f" {name} · ")


def test_a_long_command_continues_as_a_shell_reads_it() -> None:
    """No word is cut, and none that is quoted is parted."""
    path = f"'run of {'x' * 30} -- it'"
    command = f"dptune report {path} --patch --advice DP102 | git apply"
    rows = ["".join(span.text for span in row) for row in command_line("Apply", command, 80)]
    assert rows[0].startswith(" Apply    dptune report 'run of ")
    assert all(len(row) <= 80 for row in rows)
    assert shlex.split(" ".join(row[10:] for row in rows).replace(" \\ ", " ")) == shlex.split(command)
    assert len(list(command_line("Apply", "dptune report x --patch", 80))) == 1


@pytest.mark.parametrize(("name", "shown"), [("train.py:12", "train.py:12"), (f"{'x' * 40}.py:1234", "xxx.py:1234")])
def test_a_long_place_keeps_its_line_number(name: str, shown: str) -> None:
    _, report = reading.sample("starved_loader")
    card = report.advice[0]
    file, _, line = name.rpartition(":")
    change = card.changes[0].model_copy(update={"at": Location(file=file, line=int(line))})
    long = report.model_copy(update={"advice": [card.model_copy(update={"changes": [change]})]})
    rows = text.first_screen(long).splitlines()
    assert any(shown in row and "DP501" in row for row in rows)
    assert all(len(row) <= 80 for row in rows)


def test_a_long_name_leaves_room_for_ranks_and_devices() -> None:
    _, report = reading.sample("starved_loader")
    run = report.run.model_copy(update={"command": f"python {'pretrain' * 10}.py"})
    shown = text.first_screen(report.model_copy(update={"run": run})).splitlines()[0]
    assert shown.endswith("pretrain.py · 2 ranks · Intel Xeon (CPU, gloo)")
    assert len(shown) <= 80


def test_ranks_that_share_a_gpu_are_not_counted_as_gpus() -> None:
    """Two ranks on one H200, recorded with their UUIDs."""
    report = reading.reported(reading.SAMPLES / "gpu" / "ranks-nccl-fsdp")
    assert [rank.gpu_ranks for rank in report.measured.ranks] == [[0, 1], [0, 1]]
    shown = text.first_screen(report).splitlines()[0]
    assert shown.startswith(" ranks.py · 2 ranks on 1 x NVIDIA H200 (nccl) · ")
    alone = [rank.model_copy(update={"gpu_ranks": []}) for rank in report.measured.ranks]
    apart = report.model_copy(update={"measured": report.measured.model_copy(update={"ranks": alone})})
    assert " · 2 ranks · 2 x NVIDIA H200 (nccl) · " in text.first_screen(apart)
    mixed = [alone[0], alone[1].model_copy(update={"device_name": "NVIDIA A40"})]
    two = report.model_copy(update={"measured": report.measured.model_copy(update={"ranks": mixed})})
    assert " · 2 ranks · 1 x NVIDIA H200 + 1 x NVIDIA A40 (nccl) · " in text.first_screen(two)


@pytest.mark.parametrize(("label", "role"), [("Healthy", "good"), ("No findings", "note"), ("Straggler", "warning")])
def test_a_verdict_is_as_alarming_as_the_run(label: str, role: str) -> None:
    assert verdict_role(label) == role


def test_a_finding_without_a_saving_is_named_by_its_kind() -> None:
    card = reading.sample("tiny_buckets")[1].advice[0]
    kinds = [fix_of(card.model_copy(update={"saves": None, "kind": kind}), []).saves for kind in ("risk", "time")]
    assert kinds == ["risk", "unknown"]


def test_what_to_do_next_is_not_cut_where_there_is_room_and_repeats_no_command() -> None:
    _, report = reading.sample("healthy")
    rule = "dptune rules explain DP101"
    first = f"{'This is what to do next. ' * 3}".replace(". This", ", this")
    headline = report.headline.model_copy(update={"next": f"{first}{'and more of it ' * 8}to the end. How: `{rule}`."})
    card = reading.sample("tiny_buckets")[1].advice[0]
    shown = text.first_screen(report.model_copy(update={"headline": headline, "advice": [card]}), patches=False)
    assert "to the end." in shown
    assert "How:" not in shown
    assert f" Explain  {rule}" in shown
    assert len(shown.splitlines()) <= 24


@pytest.mark.parametrize("folder", ["/data/shared/traces/of/a/long/place", "/a folder/with a blank/in its long name"])
def test_a_long_path_is_shortened_before_a_command_is_cut(foreign: Report, folder: str) -> None:
    source = f"{folder}/{'deeper/' * 12}t t.json"
    command = "dptune report {} --full"
    said = (
        f"Call `step()`, or record with `dptune profile train.py`. `{command.format(shlex.quote(source))}` shows all."
    )
    run = foreign.run.model_copy(update={"sources": [source]})
    headline = foreign.headline.model_copy(update={"next": said})
    shown = text.first_screen(foreign.model_copy(update={"run": run, "headline": headline}))
    folded = " ".join(shown.split())
    assert f"`{command.format(shlex.quote('.../t t.json'))}` shows all." in folded
    endless = headline.model_copy(update={"next": f"{said} {'And so on' * 20}."})
    folded = " ".join(text.first_screen(foreign.model_copy(update={"run": run, "headline": endless})).split())
    assert folded.count("`") % 2 == 0


def test_overhead_of_the_profiler_within_the_noise_is_no_limit() -> None:
    _, report = reading.sample("healthy")
    cheap = Finding(code=PROFILER_CHEAP, level="info", text="within the noise")
    shown = text.first_screen(
        report.model_copy(update={"trust": report.trust.model_copy(update={"findings": [cheap]})})
    )
    assert "within the noise" not in shown


def test_no_diff_is_offered_where_the_script_cannot_be_read() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    shown = text.first_screen(report, patches=False)
    assert "git apply" not in shown
    assert " Explain  dptune rules explain DP102" in shown


def test_the_shares_are_those_of_the_account() -> None:
    _, report = reading.sample("starved_loader")
    measured = report.measured
    (bar,) = first_screen(report).bars
    for part, share in zip(PARTS, bar.shares, strict=True):
        assert share == pytest.approx(sum(map(measured.step_share, part.classes)), abs=1e-3)
    assert sum(bar.shares) == pytest.approx(1)


def test_equal_ranks_share_a_bar_and_the_straggler_has_its_own() -> None:
    report = of_ranks([(0.2, 0), (0, 0.2), (0.2, 0), (0.21, 0)], late=1)
    late, usual = sorted(first_screen(report).bars, key=lambda bar: not bar.marked)
    assert (late.name, late.odd.name, late.marked) == ("r1", "input", True)
    assert (usual.name, usual.odd.name, usual.marked) == ("r0,2-3", "comm or waiting", False)
    assert usual.shares[2] == pytest.approx((0.2 + 0.2 + 0.21) / 3)
    shown = text.first_screen(report)
    assert " r1    ▶ " in shown
    assert " r0,2-3  " in shown


def test_shares_of_several_bars_are_called_their_mean() -> None:
    """10 % of one rank's step and 30 % of the other's: neither bar has the 20 % of the legend."""
    several = of_ranks([(0.1, 0), (0.3, 0)])
    assert re.search(r"^ mean  .*[?▚] comm or waiting 20 %", text.first_screen(several), re.MULTILINE)
    assert "<li>mean over ranks:</li>" in html.page(several)
    alike = of_ranks([(0.2, 0), (0.2, 0)])
    assert "comm or waiting 20 %" in text.first_screen(alike)
    assert "mean  " not in text.first_screen(alike)
    assert "mean over ranks" not in html.page(alike)


def test_a_straggler_that_the_report_does_not_name_is_not_marked() -> None:
    report = of_ranks([(0.2, 0), (0, 0.2)], late=1)
    quiet = report.model_copy(update={"headline": report.headline.model_copy(update={"cause": ""})})
    assert not any(bar.marked for bar in first_screen(quiet).bars)


def test_what_a_bar_shows_is_in_the_legend() -> None:
    """Of many ranks, one waits for input for a fifth of its steps: a fifth of a percent of the mean."""
    screen = first_screen(of_ranks([(0.2, 0)] * 99 + [(0, 0.2)], late=99))
    shares = {part.name: share for part, share in screen.mean_shares()}
    assert shares["input"] == pytest.approx(0.002)
    assert "~ input <1 %" in text.first_screen(of_ranks([(0.2, 0)] * 99 + [(0, 0.2)], late=99))
    assert "copies" not in shares


@pytest.mark.long
def test_a_thousand_ranks_take_few_bars() -> None:
    report = of_ranks([(number % 50 / 100, 0) for number in range(1000)], late=7)
    bars = first_screen(report).bars
    assert len(bars) <= 4
    assert sum(len(bar.ranks) for bar in bars) == 1000
    shown = text.first_screen(report).splitlines()
    assert len(shown) <= 24
    assert all(len(row) <= 80 for row in shown)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_it_folds_to_any_width(report: Report, width: int) -> None:
    shown = text.first_screen(report, width).splitlines()
    assert all(len(row) <= width or "dptune " in row for row in shown)
    assert "DP102" in "".join(shown)


def test_limits_end_with_a_whole_clause() -> None:
    ran = "51 of 82 rules ran; 27 need a recording by `dptune profile`"
    limit = f"{ran}; 4 could not, 2 because the traces hold no Python stacks"
    assert _whole_clauses(limit, 70, 1) == ran
    assert _whole_clauses(limit, 70, 2) == _whole_clauses(limit, 66, 1) == limit  # a narrow page has twice the lines
    assert _whole_clauses("x" * 200, 70, 1) == "x" * 200
    queued = "the first traced step starts with 10.5 ms of queued work"
    assert _whole_clauses(f"{queued}: record more steps", 70, 1) == queued
    assert _whole_clauses(f"overhead: {'x' * 70}", 70, 1).startswith("overhead: x")  # no label alone


def test_it_is_drawn_in_ascii_where_blocks_cannot_be() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    shown = text.first_screen(report, blocks=False)
    assert shown.isascii()
    assert "# compute 60 %  ! exposed comm 21 %" in shown


def test_names_out_of_a_trace_are_no_escape_codes(report: Report) -> None:
    advice = report.advice[0].model_copy(update={"slug": EVIL})
    run = report.run.model_copy(update={"command": None, "sources": [EVIL]})
    headline = report.headline.model_copy(update={"verdict": EVIL, "next": EVIL})
    shown = text.first_screen(report.model_copy(update={"advice": [advice], "run": run, "headline": headline}))
    assert "\x1b" not in shown


def test_a_long_name_without_spaces_is_cut(report: Report) -> None:
    name = "x" * 5000
    headline = Headline(label=name, verdict=name, cause=name, why=name, next=name)
    limits = report.trust.model_copy(update={"findings": [Finding(code="c", level="partial", text=name)]})
    shown = text.first_screen(report.model_copy(update={"headline": headline, "trust": limits}))
    rows = [row for row in shown.splitlines() if "X" not in row]  # the label has lines of its own
    assert len(rows) <= 24
    assert any(row.endswith("...") for row in rows)


def test_long_names_leave_the_figures_of_a_sentence(report: Report) -> None:
    """A cause and what to do next show both ends of a name, rather than the name alone; code is not shortened."""
    name = f"# running sparse {'very_' * 30}arch"
    called = f"forward({'very_' * 30}) arch"
    cause = f"`{name}` in `{called}` takes 1,010 ms on rank 2, 20.7 ms on the others; this explains 99 % of its lag."
    headline = Headline(
        label="Straggler",
        verdict="Rank 2 is late.",
        cause=cause,
        why="w",
        next=f"Find out what `{name}` does: a sleep.",
    )
    shown = " ".join(text.first_screen(report.model_copy(update={"headline": headline})).split())
    assert "takes 1,010 ms on rank 2, 20.7 ms on the others; this explains 99 % of its lag." in shown
    assert "does: a sleep." in shown
    assert re.search(r"`# running( sparse)?( \w+)?\.\.\w*arch` in `forward\(", shown)
    short = {"cause": cause.replace(name, "# running sparse arch").replace(called, "## forward ##"), "next": "n"}
    narrow = text.first_screen(report.model_copy(update={"headline": headline.model_copy(update=short)}), 60)
    assert "`# running sparse arch` in `## forward ##`" in " ".join(narrow.split())  # a narrow page takes more lines
    code = f"Use `{'loss = model(x); ' * 20}`."
    headline = headline.model_copy(update={"next": code})
    assert "`loss = model(x); loss = model(x);" in text.first_screen(report.model_copy(update={"headline": headline}))


def test_a_run_of_which_nothing_is_known_has_one_too(foreign: Report) -> None:
    shown = text.first_screen(foreign)
    assert "Limits" not in shown or "dptune" in shown
    assert shown.startswith(" t.json · 1 rank")


def test_the_saving_that_was_measured_replaces_the_predicted_one() -> None:
    from dptune.advice import Verified

    _, report = reading.sample("accumulation_without_no_sync")
    proof = Verified(
        name="ddp.no_sync=true",
        advice="DP102",
        changes={"ddp.no_sync": True},
        outcome="better",
        reason="r",
        objective="time per sample",
        ratio=0.66,
        low_ratio=0.602,
        high_ratio=0.72,
        before_ns=1,
        trials=6,
        learning="",
    )
    fix = first_screen(report.model_copy(update={"verified": [proof]})).fixes[0]
    assert (fix.saves, fix.confidence) == ("28-40 %", "verified")  # 1 - 0.72 and 1 - 0.602
    slower = proof.model_copy(update={"outcome": "worse"})
    assert first_screen(report.model_copy(update={"verified": [slower]})).fixes[0].saves == "slower"
    undecided = report.model_copy(update={"verified": [proof.model_copy(update={"outcome": "inconclusive"})]})
    expected = first_screen(report.model_copy(update={"verified": []})).fixes[0].saves
    fix = first_screen(undecided).fixes[0]
    assert (fix.saves, fix.confidence) == (expected, "inconclusive")
    assert " 1  DP102 no-sync-missing" in text.first_screen(undecided)  # a table, not a sentence per row


def test_each_section_can_be_printed_by_its_name() -> None:
    assert list(SECTION_NAMES) == list(text.SECTIONS)
    _, report = reading.sample("accumulation_without_no_sync")
    whole = text.text(report)
    for name in SECTION_NAMES:
        section = text.sections(report, [name])
        assert section.strip() in whole
    both = text.sections(report, ["ranks", "quality"])
    assert both.index("Data quality") < both.index("Ranks (2)")  # in the order of the page


def test_data_quality_alone_names_what_the_headline_of_a_whole_page_says(report: Report) -> None:
    why = Finding(code="machine-busy", level="unjudgeable", text="other processes used 1.85 of 2 cores")
    trust = report.trust.model_copy(update={"level": "unjudgeable", "findings": [why]})
    headline = Headline(label="Times not reliable", verdict="v.", why="Other processes used 1.85 of 2 cores.", next="n")
    shown = report.model_copy(update={"trust": trust, "headline": headline})
    assert why.text in text.sections(shown, ["quality"])
    assert why.text not in text.text(shown)
    assert why.text in html.page(shown).partition('id="quality"')[2]


def test_the_bar_of_a_rank_without_steps_is_of_its_whole_recording(foreign: Report) -> None:
    (bar,) = first_screen(foreign).bars
    whole = account(compute=60, hidden=9, exposed=21, copy=2, waiting=12, unexplained=5)
    assert bar.shares[0] == pytest.approx(whole.share("compute_ns"), abs=1e-6)


def test_too_few_steps_for_a_verdict_show_the_kernels() -> None:
    _, report = reading.sample("accumulation_without_no_sync")
    few = Finding(code="steps-few", level="unjudgeable", text="only 1 steady step was recorded")
    judged = report.model_copy(update={"trust": report.trust.model_copy(update={"findings": [few]})})
    most = report.measured.kernels.top[0].name[:12]
    assert most not in text.first_screen(report)
    assert most in text.first_screen(judged)


def test_rules_that_could_not_run_for_several_reasons_are_all_counted() -> None:
    _, report = reading.sample("healthy")
    lacks = "the traces hold no Python stacks: use with_stack=True"
    reasons = {"XX101": lacks, "XX102": lacks, "XX103": "the trace does not show dtypes: record"}
    skipped = [Skipped(rule=rule, reason=reason) for rule, reason in reasons.items()]
    (limits,) = [
        words for words in first_screen(report.model_copy(update={"skipped": skipped})).unseen if "ran" in words
    ]
    ran = len(report.quiet)
    assert limits == f"{ran} of {ran + 3} rules ran; 3 could not, 2 because the traces hold no Python stacks"
