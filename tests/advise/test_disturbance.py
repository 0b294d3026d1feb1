"""What other processes did to a recording, and when its times are no basis for advice."""

from __future__ import annotations

import pytest

from dptune.advice import RunSummary
from dptune.advise import packs
from dptune.advise.disturbance import findings
from dptune.advise.engine import assemble
from dptune.advise.trust import judge
from dptune.config import Settings
from dptune.measured import LoadFigures
from dptune.runfile.facts import OptimizerFacts
from dptune.runfile.loader import LoaderFacts
from dptune.runfile.norm_samples import NormSampleFacts
from dptune.runfile.window import Window


@pytest.fixture
def assembled():
    """The report of figures and facts, by the rules of dptune."""
    return lambda measured, facts: assemble(RunSummary(sources=[]), facts, [], measured, Settings(), packs.survey())


def with_load(measured, withheld, other=1.2):
    found = LoadFigures(
        host="vm", window="untraced", cores=2, job_cores=0.8, other_cores=other, waiting_cores=other,
        withheld_share=withheld,
    )  # fmt: skip
    return measured.model_copy(
        update={"load": [found], "missing": {n: w for n, w in measured.missing.items() if n != "load"}}
    )


def timed(make_facts, untraced_ms, traced_ms=(), **more):
    windows = [
        Window(name, 3, [int(ms * 1e6) for ms in times], **{key: value[name] for key, value in more.items()})
        for name, times in (("untraced", untraced_ms), ("light", traced_ms))
    ]
    return [make_facts(windows=windows)]


STEADY = [100.0] * 20


def scattered(measured):
    step = measured.step.model_copy(update={"untraced_q1_ns": 8_000_000, "untraced_q3_ns": 14_000_000})
    return measured.model_copy(update={"step": step})


@pytest.mark.parametrize(
    ("withheld", "shown", "level"),
    [
        (0.02, False, None),  # below what two runs differ by: not worth a word
        (0.2, False, "info"),
        (0.4, True, "info"),  # moderately busy: still judged
        (0.49, False, "info"),
        (0.6, False, "partial"),  # steady all the same
        (0.6, True, "unjudgeable"),
        (0.8, False, "unjudgeable"),
    ],
)
def test_only_what_was_withheld_and_shows_blocks_advice(make_measured, make_facts, withheld, shown, level):
    measured = with_load(make_measured(), withheld)
    found = list(findings(scattered(measured) if shown else measured, timed(make_facts, STEADY)))
    assert [one.level for one in found] == ([level] if level else [])


def test_the_finding_has_the_figures(make_measured, make_facts):
    (found,) = findings(scattered(with_load(make_measured(), 0.85, other=1.73)), timed(make_facts, STEADY))
    assert found.code == "machine-busy"
    assert found.text == (
        "other processes used 1.73 of 2 cores on host vm during recording and withheld up to 85 % of the CPU time this "
        "job needed. Step times vary widely: interquartile range 8.00 to 14.0 ms"
    )


def test_steps_that_change_many_fold_block_advice_where_no_load_was_measured(make_measured, make_facts):
    """A recording that took 2,440 ms a step at first and 48 ms in its last ones."""
    (found,) = findings(make_measured(), timed(make_facts, [2440.0] * 20, [48.0] * 5))
    assert (found.code, found.level) == ("steps-unsteady", "unjudgeable")
    assert "2,440 ms untraced, then 48.0 ms traced" in found.text
    (found,) = findings(make_measured(), timed(make_facts, [400.0] * 7 + [100.0] * 6 + [40.0] * 7, [45.0] * 5))
    assert "400.0 ms at first, 40.0 ms at the end" in found.text


def test_on_a_quiet_machine_it_is_the_script_that_changes(make_measured, make_facts):
    facts = timed(make_facts, [40.0] * 7 + [100.0] * 6 + [400.0] * 7, [450.0] * 5)
    (found,) = findings(with_load(make_measured(), 0.01), facts)
    assert (found.code, found.level) == ("steps-unsteady", "info")
    (found,) = findings(with_load(make_measured(), 0.3), facts)
    assert found.level == "unjudgeable"


@pytest.mark.parametrize(
    "untraced",
    [
        STEADY,
        [100.0, 100.0, 100.0, 100.0, 1000.0] * 4,  # a checkpoint in each fifth step
        [100.0, 400.0] * 10,
        [50.0, 600.0, 200.0, 90.0, 450.0, 300.0, 80.0, 120.0, 550.0, 170.0],  # batches of any length
        [8.0] * 7 + [1.0] * 13,  # within a tenth of a second the end of warm-up shows
    ],
)
def test_healthy_steps_that_differ_are_not_unsteady(make_measured, make_facts, untraced):
    assert list(findings(make_measured(), timed(make_facts, untraced, [200.0] * 5))) == []


def test_what_the_loader_takes_is_not_unsteadiness(make_measured, make_facts):
    """Without workers' batches ready, the first third of the steps waits for 900 of 1,000 ms."""
    waits = {"untraced": [900_000_000] * 7 + [0] * 13, "light": []}
    facts = timed(make_facts, [1000.0] * 7 + [100.0] * 13, [120.0] * 5, loader_wait_ns=waits)
    assert list(findings(make_measured(), facts)) == []


def test_times_that_cannot_be_judged_leave_risks_and_skip_time_rules(make_measured, make_facts, assembled):
    report = assembled(with_load(make_measured(), 0.9), [make_facts()])
    assert report.trust.level == "unjudgeable"
    assert report.headline.verdict == "The times of this run are not reliable, so nothing is recommended on speed."
    assert report.headline.why.startswith("Other processes used 1.2 of 2 cores on host vm")
    assert report.headline.next.startswith("Stop other processes on this machine")
    reasons = {one.rule: one.reason for one in report.skipped}
    assert reasons["DP603"].startswith("not enough reliable data for a verdict: other processes used")
    assert "DP504" not in reasons or "for a verdict" not in reasons["DP504"]


def test_a_loader_that_is_waited_for_in_every_window_is_advised_on(make_measured, make_facts, assembled):
    windows = [
        Window(name, 3, [10_000_000] * 4, loader_wait_ns=[6_000_000] * 4) for name in ("untraced", "light", "detailed")
    ]
    facts = make_facts(loaders=[LoaderFacts("train.py:12", num_workers=0, dataset="Photos")], windows=windows)
    report = assembled(with_load(make_measured(wait_share=0.6), 0.9), [facts])
    assert report.trust.level == "unjudgeable"
    (advice,) = [one for one in report.advice if one.kind == "time"]
    assert (advice.rule, advice.confidence) == ("DP501", "medium")
    assert report.headline.verdict == (
        "The times of this run are not reliable: only recommendations that do not depend on them are given."
    )
    assert report.headline.next.startswith(
        "DP501: In train.py:12, use `DataLoader(dataset, ..., num_workers=3, persistent_workers=True)`."
    )
    assert " Then stop other processes on this machine" in report.headline.next
    assert report.headline.next.count("ecord again") == 1
    assert report.headline.rule == "DP501"


def test_where_times_do_not_hold_the_first_finding_comes_next(make_measured, make_facts, assembled):
    windows = [
        Window(name, 3, [10_000_000] * 4, loader_wait_ns=[6_000_000] * 4) for name in ("untraced", "light", "detailed")
    ]
    loader = LoaderFacts("train.py:12", num_workers=0, dataset="Photos")
    facts = make_facts(loaders=[loader], windows=windows, norm_samples=NormSampleFacts(1, 1, 2, 1024, ["norm"]))
    report = assembled(with_load(make_measured(wait_share=0.6), 0.9), [facts])
    first = report.advice[0]
    assert (first.rule, first.impact) == ("DP311", "medium")
    assert report.headline.rule == first.rule
    assert report.headline.next.startswith(f"{first.rule}: {first.remedy} Then stop other processes")


def test_an_optimizer_that_no_hardware_needs_so_long_for(make_measured, make_facts, hand_made):
    """0.8 million parameters in 52 tensors: 104 ms for the calls and 179 ms for 45 MB at 0.25 GB/s."""
    adam = OptimizerFacts("AdamW", parameter_tensors=52, parameters=800_000)

    def trust(per_step_ms, optimizer=adam, device="cpu", recorded=True):
        spent = hand_made.phases(0.1, 0.1, 0.1)
        steps = 2 * hand_made.STEPS
        spent[2] = spent[2].model_copy(update={"host_ns": int(per_step_ms * 1e6) * steps})
        facts = [make_facts(optimizers=[optimizer])] if recorded else []
        return judge(make_measured(device=device, phases=spent), facts)

    assert trust(808).level == "unjudgeable"
    (text,) = [one.text for one in trust(808).findings if one.code == "optimizer-implausible"]
    assert text.startswith("the optimizer took 808.0 ms per traced step to update 0.8 million parameters")
    assert "less than 283.2 ms" in text
    assert trust(100).level == "sound"
    assert trust(808, OptimizerFacts("SOAP", parameter_tensors=52, parameters=800_000)).level == "sound"
    assert trust(808, device="cuda").level == "sound"  # its calls may wait for the GPU
    large = OptimizerFacts("AdamW", parameter_tensors=52, parameters=80_000_000)
    assert trust(808, large).level == "sound"
    assert trust(808, recorded=False).level == "sound"  # a trace tells nothing of the optimizer's size


def test_a_collective_beyond_any_link_is_no_basis_for_advice_on_communication(make_measured, hand_made, assembled):
    row = hand_made.all_reduce(2**30, 1)
    missing = {name: why for name, why in row.missing.items() if name != "busbw_gb_per_s"}
    fast = row.model_copy(update={"busbw_gb_per_s": 9_000.0, "missing": missing})
    report = assembled(make_measured(collectives=[fast]), [])
    assert report.trust.level == "partial"
    (text,) = [one.text for one in report.trust.findings if one.code == "collectives-implausible"]
    assert text.startswith(
        "all_reduce of 1,073,741,824 bytes shows 9,000 GB/s, more than any link carries (4,000 GB/s)"
    )
    assert "Partial data" not in report.headline.why
    reasons = {one.rule: one.reason for one in report.skipped}
    assert reasons["DP103"] == text
    usual = row.model_copy(update={"busbw_gb_per_s": 480.0, "missing": missing})
    assert assembled(make_measured(collectives=[usual]), []).trust.level == "sound"
