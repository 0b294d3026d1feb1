"""Ratios of policies that stay 1: real losses of small policies, with real updates."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from dptune.capture.injected.observe.policy_ratios import PolicyRatios

STATES, ADVANTAGES = torch.randn(24, 3), torch.randn(24)
ACTIONS, FORCES = torch.randint(0, 4, (24,)), torch.randn(24, 2)


def minimum(ratio, gain):
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def maximum(ratio, gain):
    return torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2)).mean()


def chosen(ratio, gain):
    limit = torch.where(gain > 0, 1.2 * gain, 0.8 * gain)
    return -torch.min(ratio * gain, limit).mean()


def where(ratio, gain):
    return -torch.where(gain > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8)).mul(gain).mean()


def stacked(ratio, gain):
    return -torch.stack([ratio * gain, ratio.clip(0.9, 1.1) * gain]).amin(0).mean()


def plain(ratio, gain):
    return -(ratio * gain).mean()


def categorical(policy, rows):
    return Categorical(logits=policy(STATES[rows])).log_prob(ACTIONS[rows])


def normal(policy, rows):
    return Normal(policy(STATES[rows])[:, :2], 0.5).log_prob(FORCES[rows]).sum(-1)


@torch.no_grad()
def drawn(log_probs, policy):
    return log_probs(policy, slice(None))


def train(old, *, log_probs=categorical, quotient=False, loss=minimum, batch=12, rate=0.05, passes=6, fresh=False):
    """What is found in passes over minibatches; `old(policy, rows, new, before)` gives the old log-probabilities."""
    policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate)
    observer = PolicyRatios()
    observer.begin()
    before = drawn(log_probs, policy)
    for step in range(passes):
        rows = torch.arange(24).roll(step * batch)[:batch]
        if fresh:
            STATES.copy_(torch.randn(24, 3))
        new = log_probs(policy, rows)
        previous = old(policy, rows, new, before)
        ratio = new.exp() / previous.exp() if quotient else (new - previous).exp()
        total = loss(ratio, ADVANTAGES[rows]) + 0.5 * policy(STATES[rows]).square().mean()
        observer.before_pass(total)
        optimizer.zero_grad()
        total.backward()
        observer.after_pass()
        optimizer.step()
    observer.end()
    assert not torch.is_anomaly_enabled()
    return observer.facts()


def again(policy, rows, new, before, log_probs=categorical):
    with torch.no_grad():
        return log_probs(policy, rows)


def detached(policy, rows, new, before):
    return new.detach()


def kept(policy, rows, new, before):
    return before[rows]


@pytest.mark.parametrize(
    "case",
    [
        {"old": again},
        {"old": detached},
        {"old": detached, "log_probs": normal},
        {"old": detached, "quotient": True},
        {"old": again, "quotient": True, "loss": maximum},
        *({"old": again, "loss": loss} for loss in (maximum, chosen, where, stacked)),
    ],
)
def test_a_ratio_that_stays_one(case):
    (facts,) = train(**case)
    assert facts.stays_one
    assert (facts.passes, facts.ones, facts.updates, facts.passes_seen) == (6, 6, 5, 6)
    assert (facts.samples, facts.seen_again) == (12, 1.0)
    assert facts.where.startswith("tests/capture/test_policy_ratios.py:")


def test_samples_of_each_pass_are_new():
    (facts,) = train(detached, fresh=True)
    assert facts.stays_one
    assert facts.seen_again == 0


@pytest.mark.parametrize(
    ("case", "ones"),
    [
        ({"old": kept}, 1),  # only before the first update
        ({"old": kept, "log_probs": normal, "loss": maximum}, 1),
        ({"old": again, "rate": 0.0}, 6),  # nothing is updated: any ratio is 1
        ({"old": again, "passes": 2}, 2),
    ],
)
def test_other_ratios(case, ones):
    (facts,) = train(**case)
    assert facts.ones <= ones
    assert not facts.stays_one


def constant(ratio, gain):
    return -torch.min(ratio * 0.5, ratio.clamp(0.8, 1.2) * 0.5).mean()


def bounded(ratio, gain):
    return -(ratio.clamp(1e-6, 1.0) * gain).mean()


@pytest.mark.parametrize("loss", [plain, constant, bounded])
def test_other_losses(loss):
    """Without a clip around 1, or without advantages."""
    assert train(detached, loss=loss) == []


def test_a_gain_that_starts_at_one():
    observer, scale = PolicyRatios(), nn.Parameter(torch.zeros(12))
    observer.begin()
    observer.before_pass(minimum(scale.exp(), ADVANTAGES[:12]))
    observer.end()
    assert observer.facts() == []


SCRIPT = """
    import torch
    from torch import nn
    from torch.distributions import Categorical

    policy = nn.Linear(3, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    states, actions, gains = torch.randn(16, 3), torch.randint(0, 4, (16,)), torch.randn(16)
    for step in range(12):
        new = Categorical(logits=policy(states)).log_prob(actions)
        ratio = (new - new.detach()).exp()
        loss = -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WINDOWS = ("--warmup", "5", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_line_of_the_ratio(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().policy_ratios
    assert facts.stays_one
    assert (facts.where, facts.seen_again) == ("train.py:11", 1.0)
