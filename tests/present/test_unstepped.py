"""A report of a run in which no steps were found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dptune.advice import Headline, Report, Skipped, Trust
from dptune.finding import Finding
from dptune.measured import Account, DeviceFigures
from dptune.present.html import page as html
from dptune.present.text import text
from dptune.present.tui.overview import overview

from .. import reading  # noqa: TID252 - tests are no installed package

WHY = "the trace marks no steps, and nothing in it repeats"
OF_STEPS = ("phases", "overlap", "gaps", "collectives", "links", "copies", "kernels", "attribution")
TITLES = ("Phases", "Longest gaps", "Collectives", "Links:", "Copies", "Kernels", "Compute time by source")


def device(name: str, window_ns: int, compute_ns: int) -> DeviceFigures:
    hidden, exposed = compute_ns // 6, 10_000_000
    whole = Account(
        window_ns=window_ns,
        compute_ns=compute_ns,
        exposed_unsplit_ns=exposed,
        host_idle_ns=window_ns - compute_ns - exposed,
        communication_ns=exposed + hidden,
        hidden_communication_ns=hidden,
    )
    return DeviceFigures(device=name, steps=[], whole=whole, device_operations=9, kernels=9)


@pytest.fixture
def unstepped(foreign: Report) -> Report:
    """Recordings of 100 ms and 300 ms: 60 + 180 ms of compute, 40 of them beside communication, 20 ms of it exposed."""
    rank = foreign.measured.ranks[0]
    devices = [device("cuda:0", 100_000_000, 60_000_000), device("cuda:1", 300_000_000, 180_000_000)]
    ranks = [
        rank.model_copy(update={"rank": at, "devices": [one], "missing": {**rank.missing, "loader_wait_share": WHY}})
        for at, one in enumerate(devices)
    ]
    measured = foreign.measured
    step = measured.step.model_copy(update={"missing": {**measured.step.missing, "light_median_ns": WHY}})
    given = measured.input.model_copy(update={"missing": dict.fromkeys(measured.input.missing, WHY)})
    missing = {**measured.missing, **dict.fromkeys(("account", "straggler", *OF_STEPS), WHY)}
    told = f"no steps were found, so nothing can be said per step: {WHY}"
    return foreign.model_copy(
        update={
            "headline": Headline(
                verdict="Not enough reliable data for a verdict.", why=f"N{told[1:]}.", next="Record it."
            ),
            "trust": Trust(
                level="unjudgeable",
                findings=[
                    Finding(code="steps-missing", level="unjudgeable", text=told),
                    Finding(code="x", level="info", text="TF32 is off"),
                ],
            ),
            "skipped": [Skipped(rule="DP101", reason=f"not enough reliable data for a verdict: {told}")],
            "measured": measured.model_copy(update={"ranks": ranks, "step": step, "input": given, "missing": missing}),
        }
    )


def flat(page: str) -> str:
    return " ".join(page.split())


def test_the_account_is_of_the_whole_recording(unstepped: Report) -> None:
    page = text(unstepped)
    title = "Time breakdown of the whole recording (traced): no steps were found"
    said = flat(page.partition(title)[2].partition("\n\n")[0])
    # 240 of 400 ms compute; the mean recording is 200 ms; 40 of 60 ms of communication are hidden
    assert "█ compute 120.0 ms 60.0 %" in said
    assert "▚ comm or waiting 10.0 ms 5.0 %" in said
    assert "· host 70.0 ms 35.0 %" in said
    assert "to the end of the last: 200.0 ms, the mean of 2 devices." in said
    assert "10.0 % of the recording; 66.7 % of all communication is hidden" in said
    assert "~ waiting for input" not in said  # whether there is a loader was not looked at


def test_the_reason_is_told_once(unstepped: Report) -> None:
    page = flat(text(unstepped))
    assert page.count(WHY) == 1
    assert f"Why No steps were found, so nothing can be said per step: {WHY}." in page
    assert "info TF32 is off" in page
    assert "light not measured: no steps were found" in page
    assert "input not measured: no steps were found" in page
    assert "No straggler identified: no steps were found." in page
    assert "DP101: not enough reliable data for a verdict" in page


@pytest.mark.parametrize("show", [text, lambda report: "\n".join(row_text(report))], ids=["text", "tui"])
def test_sections_that_are_about_steps_are_one_line(unstepped: Report, show) -> None:  # type: ignore[no-untyped-def]
    page = show(unstepped)
    assert (
        "Not shown without steps: phases and overlap, longest gaps, collectives, links, copies, kernels, "
        "compute time by source." in flat(page)
    )
    assert not [row for row in page.splitlines() if row.startswith(TITLES)]
    assert "\nMemory" in page


def row_text(report: Report) -> list[str]:
    return ["".join(span.text for span in row) for row in overview(report, 80)]


def test_a_section_that_lacks_for_another_reason_too_is_shown(unstepped: Report) -> None:
    missing = {**unstepped.measured.missing, "overlap": "nothing was communicated"}
    measured = unstepped.measured.model_copy(update={"missing": missing})
    page = flat(text(unstepped.model_copy(update={"measured": measured})))
    assert "Phases not measured: no steps were found Overlap not measured: nothing was communicated" in page
    assert "Not shown without steps: longest gaps, collectives" in page


def test_without_any_device_the_reason_stands_in_its_place(unstepped: Report) -> None:
    ranks = [rank.model_copy(update={"devices": []}) for rank in unstepped.measured.ranks]
    measured = unstepped.measured.model_copy(update={"ranks": ranks})
    page = flat(text(unstepped.model_copy(update={"measured": measured})))
    assert "Step time breakdown not measured: no steps were found" in page


OF_A_STEP = re.compile(
    r"(?:shares?|%) (?:are )?of (?:the|a|each|traced|the traced) steps?\b|\bper step\b|FLOPs? per step"
)


@pytest.mark.parametrize(
    "trace",
    [
        "gpu_only_mi210/d1472ed_gpu_only_trace.json.gz",
        "single_gpu/7cb8af7_trace.json.gz",
        "inference_graphs/b6a467c_sglang_Qwen3-8B_decode.json.gz",
        "cpu_only/84dcf76_local_test_forward_hf_gpt2.json.gz",
    ],
)
def test_public_traces_without_steps_have_no_shares_of_steps(real_traces: Path, trace: str) -> None:
    report = reading.reported(real_traces / trace)
    for page in (text(report, 200), html(report), "\n".join(row_text(report))):
        assert OF_A_STEP.findall(re.sub(r"<(?:style|script).*?</(?:style|script)>", "", page, flags=re.DOTALL)) == []
    assert "are shares of the recording." in flat(text(report))
    assert "Shares are of the whole recording." in html(report)


def test_the_pattern_finds_shares_of_steps(report: Report) -> None:
    assert OF_A_STEP.search(text(report))
    assert "are shares of the traced steps;" in flat(text(report))
    assert "Shares are of traced steps" in html(report)


def test_a_run_with_steps_is_shown_whole(report: Report) -> None:
    assert "Not shown without steps" not in text(report)


def test_rules_without_findings_give_no_verdict(unstepped: Report) -> None:
    quiet = unstepped.model_copy(update={"quiet": ["DP107", "DP802"]})
    assert "Rules with no findings (2, no verdict on this run) DP107, DP802" in flat(text(quiet))
