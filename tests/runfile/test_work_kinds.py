"""What a function is for, by the words of its name."""

from __future__ import annotations

import pytest

from dptune.runfile.work_kinds import evaluates, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Trainer.evaluate", "evaluation"),
        ("run_validation", "evaluation"),
        ("validateModel", "evaluation"),
        ("rollout", "experience"),
        ("Agent.collect_rollouts", "experience"),
        ("playEpisode", "experience"),
        ("collect", "experience"),
        ("Agent.play_audio", ""),
        ("collect_paths", ""),
        ("collect_metrics", "metrics"),
        ("log_episode", "logging"),
        ("save_checkpoint", "saving"),
        ("AreaUnderCurve.compute", "metrics"),
        ("MeanAccuracy.result", "metrics"),
        ("MetricLoss.compute", ""),
        ("LearningCurve.compute", ""),
        ("Accuracy.update", ""),
        ("RunningStatistics.compute", ""),
        ("compute", ""),
        ("display", ""),
        ("train_step", ""),
    ],
)
def test_kind_of(name, kind):
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    "name",
    ["Trainer.evaluate", "Trainer.evaluation_loop", "_run_validation", "Trainer.predict", "_EvaluationLoop.run"],
)
def test_what_evaluates(name):
    assert evaluates(name)


@pytest.mark.parametrize(
    "name",
    ["Trainer._maybe_log_save_evaluate", "Trainer.train", "_FitLoop.run", "run", "validate_arguments", "Trainer.step"],
)
def test_what_does_more_or_nothing_like_it(name):
    assert not evaluates(name)
