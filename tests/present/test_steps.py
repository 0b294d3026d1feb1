"""What a report says of its steps: what tells them, how many, which are left out."""

import pytest

from dptune.measured import Measured, SetAsideStep, StepGroup, StepsFigures, StepTime
from dptune.present.sections.breakdown import account
from dptune.present.sections.steps import steps


def said(report, found: StepsFigures | None, **times: object) -> str:
    measured: Measured = report.measured
    step: StepTime = measured.step.model_copy(update=times)
    shown = report.model_copy(update={"measured": measured.model_copy(update={"steps": found, "step": step})})
    return " ".join("".join(span.text for span in line).strip() for line in steps(shown, 400))


@pytest.mark.parametrize(
    ("basis", "words"),
    [
        ("profiler_step", "marked by the profiler."),
        (
            "optimizer",
            "from the end of one optimizer step to the end of the next. 98.7 % of their operations are the same.",
        ),
        (
            "repeating",
            "repetitions in the order of operations, since nothing marks steps. 98.7 % of their operations are",
        ),
    ],
)
def test_what_tells_the_steps(report, basis, words):
    marked = basis == "profiler_step"
    missing = {"similarity": "they are marked"} if marked else {}
    found = StepsFigures(basis=basis, similarity=None if marked else 0.987, by_rank={0: 4, 1: 4}, missing=missing)
    assert f"Shares in this report are of 4 traced steps on each rank, {words}" in said(report, found)


def test_ranks_with_different_numbers_of_steps(report):
    found = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 4, 1: 6})
    assert "of 4 to 6 traced steps on each rank" in said(report, found)
    assert "of 1 traced step, " in said(report, found.model_copy(update={"by_rank": {0: 1}}))


def test_steps_that_are_set_aside(report):
    long = [
        SetAsideStep(number=0, length_ns=900_000_000, of_usual=9.0, warm_up=True),
        SetAsideStep(number=7, length_ns=210_400_000, of_usual=2.104, warm_up=False),
        SetAsideStep(number=6, length_ns=200_000_000, of_usual=2.0, warm_up=False, rank=3),
    ]
    text = said(report, StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 6}, set_aside=long))
    assert "Step 0 is excluded from all figures: it took 900.0 ms, 9.00x the others (warm-up)." in text
    assert "Step 7 is excluded from all figures: it took 210.4 ms, 2.10x the others." in text
    assert "Step 6 is excluded from all figures: it took 200.0 ms on rank 3, 2.00x the others." in text


def test_untraced_steps_that_took_much_longer_are_told_and_kept(report):
    found = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 6})
    assert "much longer" not in said(report, found)
    assert "2 untraced steps took much longer than the others; they are included in the median" in said(
        report, found, untraced_outliers=2
    )
    assert "1 untraced step took much longer than the others; it is included" in said(
        report, found, untraced_outliers=1
    )
    did = {"longest_outlier_ns": 995_000_000, "longest_outlier_wait_ns": 739_000_000}
    told = said(report, found, untraced_outliers=2, **did)
    assert "longer than the others (up to 995.0 ms, 739.0 ms of it waiting for the data loader); they are" in told


def test_the_quartiles_of_both_windows_that_have_them(report):
    text = said(report, None)
    assert "140.2 ms, 20 steps, interquartile range 138.0-145.0 ms" in text
    assert "158.0 ms, 5 steps, interquartile range 157.0-160.0 ms" in text
    assert "Shares in this report" not in text


def test_a_last_step_that_the_median_leaves_out_is_told(report):
    found = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 6})
    assert "The median excludes the last step" in said(report, found, basis="traced", light_steps=5)
    assert "excludes" not in said(report, found, basis="traced", light_steps=6)
    assert "excludes" not in said(report, found, light_steps=5)  # recordings time every step


def test_traced_times_are_of_the_mean_step(report):
    found = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 6})
    assert "mean 240.0 ms (the step time of this report)" in said(report, found, basis="traced", time_ns=240_000_000)
    assert "mean" not in said(report, found)


def test_steps_that_take_turns_and_one_that_is_cut_short(report):
    groups = [StepGroup(numbers=[10, 12], mean_ns=59_300_000), StepGroup(numbers=[11, 13], mean_ns=61_600_000)]
    found = StepsFigures(basis="optimizer", similarity=1.0, by_rank={0: 4}, groups=groups, cut_short=[14])
    words = said(report, found)
    alternate = "Steps alternate in the operations they launch: steps 10, 12 take 59.3 ms; steps 11, 13 take 61.6 ms"
    assert f"{alternate} (means)." in words
    assert "Step 14 is excluded from all figures: the trace ends before the next step starts" in words
    single = [StepGroup(numbers=[13], mean_ns=59_300_000), StepGroup(numbers=[11, 12], mean_ns=61_600_000)]
    words = said(
        report,
        found.model_copy(update={"groups": single, "grouped_by": "time", "period": 3, "surplus": [10]}),
    )
    assert (
        "Steps alternate in time, with a period of 3: step 13 takes 59.3 ms; steps 11, 12 take 61.6 ms (means)."
        in words
    )
    assert "Step 10 is excluded from all figures: it does not complete a period of 3 steps." in words


def test_the_account_says_that_slow_steps_are_not_in_it(report):
    slow = report.measured.step.model_copy(update={"untraced_mean_ns": 420_600_000})
    measured = report.measured.model_copy(update={"step": slow})
    said_of = [
        " ".join("".join(span.text for span in line).strip() for line in account(one, 400))
        for one in (report.model_copy(update={"measured": measured}), report)
    ]
    assert "Slow steps are excluded from these rows: with them the mean step takes 420.6 ms." in said_of[0]
    assert "Slow steps are excluded from these rows" not in said_of[1]


@pytest.mark.parametrize(
    ("idle_ns", "spent"),
    [
        (10_000_000, "300.0 ms more than on the host: the launch queue drains"),
        (298_000_000, "298.0 ms of it with the device idle"),  # as after a jump of the clock
    ],
)
def test_a_queue_drains_only_on_a_device_that_works(idle_ns, spent):
    """400 ms, 100 on the host, where 100 is usual."""
    one = SetAsideStep(
        number=4, length_ns=400_000_000, of_usual=4.0, warm_up=False, idle_ns=idle_ns, host_ns=100_000_000
    )
    assert one.spent == spent
