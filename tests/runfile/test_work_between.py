"""Logging, metrics, plotting and saving in usual steps, by hand-made places of the training thread."""

from __future__ import annotations

import pytest

from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.window import SampledFacts, Window
from dptune.runfile.work_between import work_between

MS = 1_000_000
LOOP = "main (train.py:9)"


def place(*path, ms, steps=range(20), phase="", through="", kind=""):
    at = list(steps)
    return SampledFacts([LOOP, *path], phase, through, kind, len(at), at, [ms * MS] * len(at))


def rank_of(*places, rank=0, kind="cpu", step_ms=100):
    """20 steps of 100 ms, of which 60 are in the backward pass."""
    window = Window("untraced", 4, [step_ms * MS] * 20)
    window.sampled = [place("fit (train.py:40)", ms=60, phase="backward"), *places]
    return Facts(rank=rank, windows=[window], device=DeviceFacts(kind))


LOGS = place("fit (train.py:44)", "Trainer.log_stats (train.py:18)", ms=20)
SAVES = place("fit (train.py:45)", ms=30, through="torch.save", kind="saving")


def test_by_function_kind_and_line():
    """20 and 30 of 100 ms a step; of 60 looks a share of 0.2 is unsure by 1.645 x sqrt(0.2 x 0.8 / 60) = 0.085."""
    saves, logs = work_between([rank_of(LOGS, SAVES)])
    assert (saves.name, saves.where, saves.kind, saves.share) == ("torch.save", "train.py:45", "saving", 0.3)
    assert (logs.name, logs.where, logs.kind, logs.share) == ("Trainer.log_stats", "train.py:44", "logging", 0.2)
    assert logs.hottest == "Trainer.log_stats (train.py:18)"
    assert logs.most_share == pytest.approx(0.2 + 0.0849, abs=1e-4)


@pytest.mark.parametrize(
    "other",
    [
        place("fit (train.py:41)", "augment (train.py:12)", ms=20),  # nothing that is known
        place("fit (train.py:40)", "Net.forward (model.py:9)", ms=20, phase="forward"),
        place("fit (train.py:43)", "log_stats (train.py:18)", ms=20, phase="collective"),  # waits for other ranks
        place("fit (train.py:42)", "logistic_loss (train.py:12)", ms=20),
        place("fit (train.py:42)", "MetricLoss.compute (train.py:12)", ms=20),
        place("fit (train.py:44)", "log_stats (train.py:18)", ms=20, steps=range(4)),  # seen four times
    ],
)
def test_what_is_no_such_work(other):
    assert work_between([rank_of(other)]) == []


def test_the_class_of_a_method_that_reads_a_metric_says_what_it_does():
    reads = place("fit (train.py:45)", "AreaUnderCurve.compute (area.py:12)", ms=24)
    (metric,) = work_between([rank_of(reads)])
    assert (metric.name, metric.where, metric.kind) == ("AreaUnderCurve.compute", "train.py:45", "metrics")
    assert metric.share == 0.24


def test_on_a_gpu_a_function_of_the_script_may_wait_for_the_device():
    assert [one.name for one in work_between([rank_of(LOGS, SAVES, kind="cuda")])] == ["torch.save"]


def test_the_rank_where_it_is_most_is_named():
    less = place("fit (train.py:45)", ms=10, through="torch.save", kind="saving")
    (saves,) = work_between([rank_of(less), rank_of(SAVES, rank=1)])
    assert (saves.rank, saves.share, saves.everywhere) == (1, 0.3, False)
    (saves,) = work_between([rank_of(SAVES), rank_of(SAVES, rank=1)])
    assert saves.everywhere


def test_slow_steps_are_left_out():
    """Saving in every fifth step only is no work of usual steps."""
    window = Window("untraced", 4, [(400 if at % 5 == 0 else 100) * MS for at in range(20)])
    rare = place("fit (train.py:45)", ms=300, steps=range(0, 20, 5), through="torch.save", kind="saving")
    window.sampled = [place("fit (train.py:40)", ms=60, phase="backward"), rare]
    assert work_between([Facts(rank=0, windows=[window])]) == []


def test_what_a_library_that_trains_calls_is_told_from_the_training():
    """All is called from one line of the script: saving 30 ms, the library 10, and a function of the script 20."""
    window = Window("untraced", 4, [100 * MS] * 20)
    window.sampled = [
        place(ms=40, phase="backward", through="lightning.Trainer.fit"),
        place(ms=10, through="lightning.Trainer.fit"),
        place(ms=30, through="torch.save", kind="saving"),
        place("Net.log_images (net.py:30)", ms=20),
    ]
    saves, logs = work_between([Facts(rank=0, windows=[window])])
    assert (saves.name, saves.where, saves.share) == ("torch.save", "train.py:9", 0.3)
    assert (logs.name, logs.where, logs.share) == ("Net.log_images", "net.py:30", 0.2)
