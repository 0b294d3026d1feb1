"""How long learning-rate schedules are, and how far an optimizer step moves them."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from torch.optim import lr_scheduler

from dptune.capture.injected.observe.schedulers import schedulers

from .conftest import SHORT

SCRIPT = """
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=77)
    for step in range(20):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        schedule.step()
        schedule.step()
        optimizer.zero_grad()
"""


@pytest.mark.records
def test_a_recording_counts_the_steps_of_both(profile):
    done = profile(SCRIPT, *SHORT, "--continue")
    assert done.status == 0, done.err
    (found,) = done.facts().schedulers
    assert (found.name, found.where, found.length, found.advance) == ("CosineAnnealingLR", "train.py:6", 77, 2.0)


class Made:
    """The places of a script with these schedulers, and perhaps a trainer."""

    def __init__(self, made, trainers=()):
        self.made, self.trainers = made, list(trainers)

    def alive(self, kind):
        return self.trainers if kind == "Trainer" else self.made

    def line(self, thing):
        return "train.py:9"

    def stepped_at(self, thing):
        return "train.py:12"


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def cosine(total, warmup):
    def factor(step):
        return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))

    return factor


def linear(step, *, num_warmup_steps, num_training_steps):
    return max(0.0, 1 - step / num_training_steps) if step > num_warmup_steps else 1.0


def warmed_up():
    of = optimizer()
    parts = [lr_scheduler.LinearLR(of, total_iters=20), lr_scheduler.CosineAnnealingLR(of, 80)]
    return lr_scheduler.SequentialLR(of, parts, milestones=[20])


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: lr_scheduler.OneCycleLR(optimizer(), 0.1, epochs=3, steps_per_epoch=40), 120),
        (lambda: lr_scheduler.PolynomialLR(optimizer(), total_iters=90), 90),
        (lambda: lr_scheduler.LambdaLR(optimizer(), cosine(279, 20)), 279),
        (
            lambda: lr_scheduler.LambdaLR(
                optimizer(), functools.partial(linear, num_warmup_steps=10, num_training_steps=1000)
            ),
            1000,
        ),
        (warmed_up, 100),
        (lambda: lr_scheduler.LambdaLR(optimizer(), lambda epoch: 0.95**epoch), None),
        (lambda: lr_scheduler.StepLR(optimizer(), 30), None),
        (lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer(), 10), None),
    ],
)
def test_length(make, length):
    (facts,) = schedulers(Made([make()]), [], 0)
    assert facts.length == length


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda of: lr_scheduler.StepLR(of, 30), 60),  # 0.1 after 30, 0.01 after 60
        (lambda of: lr_scheduler.ExponentialLR(of, 0.9), 44),  # 0.9^43 = 0.0108, 0.9^44 = 0.0097
        (lambda of: lr_scheduler.MultiStepLR(of, [30, 80]), 80),
        (lambda of: lr_scheduler.MultiStepLR(of, [37.5, 56.25]), 57),  # torch takes fractions
        (lambda of: lr_scheduler.MultiStepLR(of, [10], 0.5), None),  # half of the rate goes on training
        (lambda of: lr_scheduler.LinearLR(of, 1.0, 0.1, 25), 25),
        (lambda of: lr_scheduler.LinearLR(of, 1.0, 0.9, 5), None),
        (lambda of: lr_scheduler.LinearLR(of, 1.0, 0.1, 7.55), 8),
        (lambda of: lr_scheduler.LinearLR(of, 0.1, 1.0, 25), None),  # warm-up
        (lambda of: lr_scheduler.PolynomialLR(of, 90), 90),
        (lambda of: lr_scheduler.ExponentialLR(of, 1.1), None),  # a search for the largest rate
        (lambda of: lr_scheduler.StepLR(of, 30, 1.0), None),
        (lambda of: lr_scheduler.CyclicLR(of, 0.1, 0.2, mode="exp_range", gamma=0.9, cycle_momentum=False), None),
        (lambda of: lr_scheduler.LambdaLR(of, cosine(279, 20)), None),
    ],
)
def test_when_a_rate_has_decayed(make, steps):
    (facts,) = schedulers(Made([make(optimizer())]), [], 0)
    assert facts.decayed_after == steps


def test_a_part_of_a_schedule_does_not_end_it():
    of = optimizer()
    parts = [lr_scheduler.LinearLR(of, 1.0, 0.1, 5), lr_scheduler.CosineAnnealingLR(of, 400)]
    chained = schedulers(Made([*parts, lr_scheduler.ChainedScheduler(parts)]), [], 0)
    assert [facts.decayed_after for facts in chained] == [None, None, None]


def test_counts_are_kept_from_one_look_to_the_next():
    made = lr_scheduler.StepLR(optimizer(), 30)
    before = schedulers(Made([made]), [], 3)
    made.last_epoch = 12
    (facts,) = schedulers(Made([made]), before, 15)
    assert (facts.advanced, facts.optimizer_steps, facts.advance) == ([0, 12], [3, 15], 1.0)


@pytest.mark.parametrize(("most", "steps"), [(-1, 4 * 25), (60, 60)])
def test_what_lightning_steps(most, steps):
    made = lr_scheduler.StepLR(optimizer(), 30)
    config = SimpleNamespace(scheduler=made, interval="epoch", frequency=1)
    known = {"num_training_batches": 99, "max_epochs": 4, "accumulate_grad_batches": 4, "max_steps": most}
    trainer = SimpleNamespace(lr_scheduler_configs=[config], **known)
    (facts,) = schedulers(Made([made], [SimpleNamespace(), trainer]), [], 0)
    assert (facts.interval, facts.frequency, facts.epochs, facts.training_steps) == ("epoch", 1, 4, steps)
