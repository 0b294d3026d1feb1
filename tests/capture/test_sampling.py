"""Where a real script's training thread is found while steps are timed, and that looking changes nothing."""

from __future__ import annotations

import pytest

from dptune.runfile.slow_steps import slow_steps
from dptune.runfile.work_between import work_between

from .conftest import SHORT

SCRIPT = """
    import time, torch

    class Trainer:
        def __init__(self):
            self.model = torch.nn.Linear(8, 8)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train_step(self):
            self.model(torch.randn(4, 8)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        def evaluate(self):
            time.sleep(0.3)

        def log_metrics(self):
            time.sleep(0.05)

        def fit(self):
            for step in range(60):
                self.train_step()
                self.log_metrics()
                if step % 3 == 0:
                    self.evaluate()

    Trainer().fit()
"""


@pytest.mark.records
def test_a_trainer_class(profile):
    """Of 12 steps of 50 ms or more, four hold an evaluation of 300 ms more."""
    run = profile(SCRIPT, "--warmup", "2", "--unprofiled", "12", "--lean", "2", "--rich", "0", "--window-time", "0")
    assert run.status == 0
    facts = run.facts()
    window = facts.window("unprofiled")
    evaluations = {at for at in range(12) if (window.first_step + at - 2) % 3 == 0}
    (cause,) = [one for one in slow_steps([facts]) if one.name.endswith("evaluate")]
    assert (cause.where, set(cause.steps), cause.periods) == ("train.py:25", evaluations, (3,))
    assert cause.extra_ns > 200e6
    (work,) = [one for one in work_between([facts]) if one.name.endswith("log_metrics")]
    assert (work.where, work.kind, work.hottest.endswith("(train.py:18)")) == ("train.py:23", "logging", True)
    for place in window.sampled:
        assert len(place.steps) == len(place.spent_ns)
        assert all(0 <= at < window.steps for at in place.steps)
    assert facts.window("lean").sampled == []


@pytest.mark.records
def test_a_script_whose_training_thread_ends_is_looked_at_no_more(profile):
    """It trains in a thread of its own, which ends inside the window."""
    run = profile(
        """
        import threading, torch
        def train():
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(5):
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """,
        *SHORT,
    )
    assert run.status == 0
    assert run.facts().window("unprofiled").steps <= 3
