"""What a function is for, by the words of its name."""

from __future__ import annotations

import pytest

from dptune.runfile.work_kinds import acts, evaluates, kind_of


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
        ("roll_out", "experience"),
        ("Learner.self_play", "experience"),
        ("check_point", "saving"),
        ("roll", ""),
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


@pytest.mark.parametrize(
    ("functions", "through"),
    [
        (["River.step", "Keeper.forward"], ["torch.Categorical.sample", "torch.Module._call_impl"]),
        (["fill", "CartEnv.step"], ["torch.Module._call_impl"]),
        (["Policy.forward"], ["torch.Normal.rsample"]),
        (["Sac.act", "observe"], []),
        (["fill"], ["gymnasium.TimeLimit.step"]),
    ],
)
def test_what_acts_in_an_environment(functions, through):
    assert acts(functions, through)


@pytest.mark.parametrize(
    ("functions", "through"),
    [
        (["Schedule.step", "Unet.forward"], ["torch.Module._call_impl"]),  # of a diffusion model
        (["Decoder.forward"], ["torch.Normal.sample"]),  # of a variational autoencoder
        (["step"], ["torch.Normal.sample"]),  # no method
        (["Teacher.forward", "relabel"], ["torch.Tensor.topk"]),
        ([], ["torch.save"]),
    ],
)
def test_what_looks_alike(functions, through):
    assert not acts(functions, through)
