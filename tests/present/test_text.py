from __future__ import annotations

import re

import pytest

from dptune.advice import Evidence, Headline, Report, RunSummary, Skipped, Together, Trust
from dptune.advise.trust import NO_VERDICT
from dptune.finding import Finding
from dptune.measured import NoiseFigures
from dptune.present.html.markup import WIDE
from dptune.present.lines import LONGEST_SENTENCE, code, wrapped
from dptune.present.sections.advice import saving
from dptune.present.text import text
from dptune.rule.recorded import NEEDS_RECORDING


def section(page: str, title: str) -> str:
    """The lines of a section, joined, so that folding does not matter."""
    _, _, rest = page.partition(f"\n{title}")
    assert rest, f"no section '{title}'"
    return " ".join(rest.split("\n\n")[0].split())


def flat(page: str) -> str:
    return " ".join(page.split())


def test_verdict_why_and_next_come_first(report: Report) -> None:
    rows = text(report).splitlines()
    assert rows.pop(0) == "Run         runs/a (python train.py)"
    assert rows[0] == "Verdict     Communication that nothing hides takes 21.0 % of every step."
    assert rows[1].startswith("Why ")
    assert any(row.startswith("Next        Reduce gradients once") for row in rows[:5])


def test_the_sections_stand_in_the_order_a_reader_needs_them(report: Report) -> None:
    page = text(report)
    order = [
        "Verdict",
        "Data quality",
        "Recommendations: speed",
        "Recommendations: risks",
        "Step time breakdown",
        "Step time",
        "Ranks (2)",
        "Collectives",
        "Copies",
        "Input and batch",
        "Skipped rules",
        "What was read",
        "Next command",
    ]
    places = [page.index(title) for title in order]
    assert places == sorted(places)


def test_a_card_says_what_to_paste_where_and_what_it_saves(report: Report) -> None:
    page = text(report)
    assert "medium impact, high confidence: DP102 no-sync" in page
    assert "set ddp.no_sync to True (now False) at train.py:31" in flat(page)
    assert "with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():\n" in page
    assert "                   loss = model(x)  # forward and backward both inside\n" in page
    assert "up to 20.7 ms of each 140.2 ms step (up to 14.7 %)" in flat(page)
    assert "Upper bound: actual savings may be lower" in flat(page)
    assert "up to 40.4 us per sample at 512 samples per step" in flat(page)
    assert "4.10 to 20.7 ms of each 140.2 ms step (2.9 to 14.7 %)" in flat(page)
    assert "all-reduces of gradients: 4 per step" in flat(page)
    assert "(see rank 1, step 3, 5.00 ms after its start, for 4.00 ms)" in flat(page)


@pytest.mark.parametrize(
    ("remedy", "label", "words"),
    [
        ("Remove the scaler.", "Change", "Remove the scaler."),
        ("Or pass `reshard_after_forward=False`.", "Or", "Pass `reshard_after_forward=False`."),
        ("Compare the host of rank 1 with the others.", "Check", "Compare the host of rank 1 with the others."),
    ],
)
def test_an_alternative_and_what_to_find_out_are_not_called_changes(
    report: Report, remedy: str, label: str, words: str
) -> None:
    card = report.advice[0].model_copy(update={"changes": [], "remedy": remedy})
    rows = text(report.model_copy(update={"advice": [card]})).splitlines()
    assert f"   {label:<12}{words}" in rows


def test_what_slow_steps_cost_is_said_of_the_mean_step(report: Report) -> None:
    saves = report.advice[0].saves
    assert saves is not None
    of_all = saves.model_copy(update={"mean_step_ms": 160.0})
    assert saving(of_all, 140_200_000).startswith("up to 20.7 ms of the mean step of 160.0 ms (up to 14.7 %).")


def test_a_change_of_the_arithmetic_says_what_to_watch(report: Report) -> None:
    page = flat(text(report))
    assert "Results may change. Compare the loss of the first 1,000 steps." in page
    assert "Results unchanged." in page


def test_the_account_is_in_ms_of_the_untraced_step_and_says_so(report: Report) -> None:
    said = section(text(report), "Step time breakdown (untraced)")
    assert "█ compute 84.1 ms 60.0 %" in said
    assert "▚ comm or waiting 29.4 ms 21.0 %" in said
    assert "~ waiting for input 16.8 ms 12.0 %" in said
    assert "30.0 % of all communication is hidden" in said
    assert "idle and waiting: the rest of the untraced step time" in said


def test_the_bar_has_a_sign_per_class_in_proportion(report: Report) -> None:
    bar = next(row for row in text(report, width=104).splitlines() if row.startswith("  ██"))
    assert bar == f"  {'█' * 60}{'▚' * 21}{'≡' * 2}{'~' * 12}{'·' * 5}"
    assert f"  {'#' * 60}{'?' * 21}{'=' * 2}{'~' * 12}{'.' * 5}" in text(report, width=104, blocks=False)


def test_a_missing_figure_gives_its_reason_and_never_zero(foreign: Report) -> None:
    page = text(foreign)
    assert "untraced not measured: no ProfilerStep in the trace" in section(page, "Step time")
    assert "Samples not measured: these traces were not recorded by dptune" in section(page, "Input and batch")
    assert not re.search(r"(?<![\d.])0 (ms|%|steps)", page)


def test_a_run_that_cannot_be_judged_never_reads_as_healthy(foreign: Report) -> None:
    page = flat(text(foreign))
    assert page.count("does not mean that") >= 2
    assert "All rules ran" not in page


def test_shares_of_a_whole_recording_are_called_that(foreign: Report) -> None:
    assert "No steps were found on rank 0: the shares are of the whole recording." in section(text(foreign), "Ranks")


def test_a_rank_that_broke_off_is_named(report: Report) -> None:
    said = section(text(report), "Ranks (2)")
    assert "Rank 1 is partial: cut off after 1,204 events" in said
    assert "[a] not measured: the rank ended before its timed steps" in said


def test_a_thousand_broken_files_do_not_drown_the_report(report: Report) -> None:
    trust = report.trust.model_copy(update={"findings": report.trust.findings * 1000})
    page = text(report.model_copy(update={"trust": trust}))
    assert "and 988 more: see --format json" in page
    assert page.count("rank 1's file broke off") == 12


def test_rules_that_could_not_run_stand_with_their_reason(report: Report) -> None:
    assert "DP201, DP202: no link table" in section(text(report), "Skipped rules")


def test_a_thousand_ranks_do_not_drown_the_report(report: Report) -> None:
    measured = report.measured.model_copy(update={"ranks": report.measured.ranks * 500})
    page = text(report.model_copy(update={"measured": measured}))
    assert "and 984 more rows: see --format json" in page
    assert len(page.splitlines()) < 200


def test_names_from_a_trace_cannot_reach_the_terminal(report: Report) -> None:
    evil = "\x1b[31mgemm<float>[bold \u202e\x07"
    ranks = [
        one.model_copy(update={"host": evil, "device_name": evil, "partial": evil}) for one in report.measured.ranks
    ]
    texts = {"title": evil, "rule": evil, "why": evil, "watch": evil, "verify": evil}
    report = report.model_copy(
        update={
            "run": RunSummary(sources=[evil], command=evil, recorded=evil, how_it_ended=evil, torch=evil),
            "headline": Headline(verdict=evil, why=evil, next=evil),
            "trust": Trust(level="partial", findings=[Finding(code="x", level="partial", text=evil)]),
            "advice": [one.model_copy(update=texts) for one in report.advice],
            "skipped": [Skipped(rule=evil, reason=evil)],
            "measured": report.measured.model_copy(update={"ranks": ranks}),
        }
    )
    assert text(report).count(r"\x1b[31mgemm<float>[bold") > 25
    for colour in (False, True):
        page = text(report, colour=colour)
        assert "\u202e" not in page
        assert "\x07" not in page
        assert "\x1b[31mgemm" not in page
        assert r"\x1b[31mgemm<float>[bold" in page


def test_colours_only_on_request(report: Report) -> None:
    assert "\x1b" not in text(report)
    coloured = text(report, colour=True)
    assert "\x1b[1;31m 3 high impact, high confidence: DP506 sampler\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text(report)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_line_but_code_fits_the_page(report: Report, width: int) -> None:
    for row in text(report, width).splitlines():
        is_code = "no_sync()" in row or "float32_matmul_precision" in row or "loss" in row
        assert len(row) <= width or is_code, row


def test_sentences_of_a_wide_page_are_folded_where_they_can_be_read() -> None:
    rows = ["".join(span.text for span in row) for row in wrapped("word " * 100, 400)]
    assert [len(row) for row in rows] == [139, 139, 139, 79]
    assert LONGEST_SENTENCE == 140
    assert len(list(wrapped("word " * 100, WIDE))) == 1  # a browser folds


def test_nothing_to_change_is_said(report: Report) -> None:
    quiet = report.model_copy(update={"advice": [], "skipped": []})
    assert "All rules ran; no findings." in text(quiet)
    assert "No rules were selected" in text(quiet.model_copy(update={"quiet": []}))
    some = report.model_copy(update={"advice": []})
    assert "No findings, but 2 rules could not run (see below)." in text(some)


def test_rules_that_lack_the_same_are_one_entry_with_ranges(report: Report) -> None:
    codes = [f"DP{number}" for number in (101, 102, 103, 105, 204, 205, 301)]
    unjudged = [Skipped(rule=code, reason=f"{NO_VERDICT}: only 2 steady steps were recorded") for code in codes]
    lone = [Skipped(rule=code, reason=NEEDS_RECORDING) for code in ("DP403", "DP605")]
    found = section(text(report.model_copy(update={"skipped": [*lone, *unjudged]})), "Skipped rules")
    assert "7 rules: not enough reliable data for a verdict (DP101-103, DP105, DP204, DP205, DP301)" in found
    assert "DP403, DP605 need a recording by `dptune profile train.py`" in found
    assert "steady" not in found


def test_rules_that_need_a_recording_are_one_line(report: Report) -> None:
    why = "the trace does not show it"
    needing = [Skipped(rule=code, reason=why, needs="recording") for code in ("DP303", "DP504")]
    page = text(report.model_copy(update={"advice": [], "skipped": [*report.skipped, *needing]}))
    assert "DP303, DP504 need a recording by `dptune profile train.py`" in section(page, "Skipped rules")
    assert why not in page
    assert "No findings, but 2 rules could not run and 2 more need a recording (see below)." in flat(page)


def test_the_last_words_are_a_command_to_type(report: Report, foreign: Report) -> None:
    assert section(text(report), "Next command").startswith("$ dptune rules explain DP102")
    assert section(text(foreign), "Next command").startswith("$ dptune profile train.py")
    proven = report.advice[0].model_copy(update={"verify": "dptune verify DP102"})
    page = text(report.model_copy(update={"advice": [proven]}))
    assert section(page, "Next command").startswith("$ dptune verify DP102")


def test_inference_is_not_recorded_with_dptune_profile(foreign: Report) -> None:
    """Nor is the reader of all sections sent to all sections."""
    why = "No steps were found: no backward pass (this looks like inference)."
    hint = "Call `profiler.step()`."
    said = f"{hint} `dptune report 'a b.json' --full` shows kernels, collectives and copies of the whole recording."
    headline = foreign.headline.model_copy(update={"why": why, "next": said})
    page = text(foreign.model_copy(update={"headline": headline}))
    assert "train.py" not in section(page, "Next command")
    assert "--full" not in page
    assert hint in page


def test_nothing_runs_over_a_narrow_page(report: Report) -> None:
    long = report.run.model_copy(update={"sources": ["a/rather/long/folder/of/recordings/rank-00000.trace.json.gz"]})
    page = text(report.model_copy(update={"run": long}), width=40)
    assert [row for row in page.splitlines() if len(row) > 40] == []
    assert "recordings/rank-00000.trace.json.gz" in "".join(page.split())


def test_folded_code_keeps_its_indentation() -> None:
    rows = ["".join(span.text for span in row) for row in code("    call(first_word, second_word)", "> ", 26)]
    assert rows == [">     call(first_word,", ">         second_word)"]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            {"noise_scale": 812.4, "low": 690.0, "high": 1010.0},
            "812 samples (690 to 1,010): beyond that, a larger global batch hardly helps convergence",
        ),
        ({"noise_scale": 812.4, "low": 690.0}, "812 samples (690 to no known bound): beyond that"),
        ({"low": 690.0}, "more than 690 samples; not measured: lost in its noise"),
        ({}, "not measured: lost in its noise"),
    ],
)
def test_the_noise_of_gradients_says_how_large_a_batch_may_be(
    report: Report, figures: dict[str, float], said: str
) -> None:
    noise = NoiseFigures.only("lost in its noise", steps=40, small_batch=8, large_batch=64, **figures)
    measured = report.measured.model_copy(update={"noise": noise})
    assert f"Noise scale {said}" in flat(text(report.model_copy(update={"measured": measured})))
    assert "Noise scale" not in text(report)


def test_an_upper_bound_above_half_of_the_step_is_no_saving(report: Report) -> None:
    one = report.advice[0]
    assert one.saves is not None
    of_samples = {"global_batch": 64, "low_us_per_sample": 0.0, "high_us_per_sample": 900.0}
    saves = one.saves.model_copy(
        update={"basis": "bound", "low_share": 0.0, "high_share": 0.6, "low_ms": 0.0, "high_ms": 60.0, **of_samples}
    )
    page = flat(text(report.model_copy(update={"advice": [one.model_copy(update={"saves": saves})]})))
    assert "Saves unknown; upper bound 60.0 ms of each " in page
    assert " step (60.0 %), not predicted Why" in page
    assert "us per sample" not in page
    assert "Upper bound: actual" not in page
    batch = saves.model_copy(update={"samples_times": 4.0})
    page = flat(text(report.model_copy(update={"advice": [one.model_copy(update={"saves": batch})]})))
    assert "upper bound 60.0 % of the time per sample, with 4x the samples per step, not predicted" in page
    half = saves.model_copy(update={"high_share": 0.5})
    page = flat(text(report.model_copy(update={"advice": [one.model_copy(update={"saves": half})]})))
    assert "not predicted" not in page


def test_low_confidence_has_a_section_of_its_own_at_the_end(report: Report) -> None:
    first, *others = report.advice
    unsure = first.model_copy(update={"confidence": "low", "title": "perhaps this"})
    page = text(report.model_copy(update={"advice": [*others, unsure]}))
    assert page.index("Low confidence: check the cause") > max(page.index(one.title[:40]) for one in others)
    assert page.index("perhaps this") > page.index("Low confidence: check the cause")
    assert "Low confidence: check" not in text(report.model_copy(update={"advice": others}))


def test_risks_come_first_where_the_report_ranks_them_first(report: Report) -> None:
    time = next(one for one in report.advice if one.kind == "time")
    risk = time.model_copy(update={"kind": "risk", "saves": None})
    page = text(report.model_copy(update={"advice": [risk, time]}))
    assert page.index("Recommendations: risks") < page.index("Recommendations: speed")


def test_what_advice_saves_together_stands_below_the_verdict(report: Report) -> None:
    saves = report.advice[0].saves
    assert saves is not None
    both = Together(
        rules=["DP101", "DP102"],
        numerics="same",
        saves=saves.model_copy(update={"low_share": 0.2, "high_share": 0.4}),
    )
    page = text(report.model_copy(update={"together": [both]}))
    together = page.index("Combined    DP101 and DP102 cut the time per sample by 20.0 to 40.0 %")
    assert page.index("Next  ") < together < page.index("Data quality")


def test_with_a_larger_batch_it_is_the_time_of_a_sample_that_is_saved(report: Report) -> None:
    one = report.advice[0]
    assert one.saves is not None
    saves = one.saves.model_copy(update={"samples_times": 4.0, "low_share": 0.2, "high_share": 0.3})
    page = text(report.model_copy(update={"advice": [one.model_copy(update={"saves": saves})]}))
    assert "Saves 20.0 to 30.0 % of the time per sample, with 4x the samples per step." in flat(page)


def test_evidence_inside_a_step_is_told_by_the_step(report: Report) -> None:
    """Step 3 begins at 1 ns; the evidence lies 5 ms after that."""
    seen = Evidence(label="a wait", value=0.25, unit="of a step", rank=1, start_ns=5_000_001, end_ns=7_500_001)
    whole = seen.model_copy(update={"start_ns": 1})
    advice = report.advice[0].model_copy(update={"evidence": [seen, whole, Evidence(label="b", value=2, rank=0)]})
    page = flat(text(report.model_copy(update={"advice": [advice]}), width=100))
    assert "a wait: 25.0 % of a step (see rank 1, step 3, 5.00 ms after its start, for 2.50 ms)" in page
    assert "a wait: 25.0 % of a step (see rank 1, step 3, for 7.50 ms)" in page
    assert "b: 2 (rank 0)" in page
    account = report.measured.ranks[1].devices[0].steps[0].account
    full = whole.model_copy(update={"end_ns": 1 + account.window_ns})
    page = flat(text(report.model_copy(update={"advice": [advice.model_copy(update={"evidence": [full]})]}), width=100))
    assert f"(see rank 1, step 3: the whole step, {account.window_ns / 1e6:.1f} ms)" in page
    later = seen.model_copy(update={"start_ns": 10**12, "end_ns": None})  # after all steps
    page = flat(
        text(report.model_copy(update={"advice": [advice.model_copy(update={"evidence": [later]})]}), width=100)
    )
    assert "(see rank 1, at 1,000,000,000.000 us on its trace's clock)" in page
