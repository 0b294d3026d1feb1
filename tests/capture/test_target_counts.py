"""How many targets losses count, and what they are divided by."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.places import Places
from dptune.capture.injected.observe.target_counts import TargetCounts

NET = nn.Linear(3, 5)
ROWS, TARGETS = torch.randn(4, 6, 3), torch.randint(0, 5, (4, 6))
IGNORED = TARGETS.clone()
IGNORED[1:, 2:] = -100  # 12 targets of 24 count
MASK = IGNORED != -100
NUMBERS = torch.randn(4, 6, 5)


def found(loss, passes=2):
    observer = TargetCounts(Places())
    observer.begin()
    for _ in range(passes):
        observer.before_pass(loss())
        observer.stepped()
    observer.end()
    observer.before_pass(loss())
    return observer.facts()


def scores():
    return NET(ROWS).flatten(0, 1)


def summed(targets=IGNORED, **how):
    return F.cross_entropy(scores(), targets.flatten(), reduction="sum", **how)


def singles():
    return F.cross_entropy(scores(), TARGETS.flatten(), reduction="none").view(4, 6)


def squares():
    return (NET(ROWS) - NUMBERS).square()


@pytest.mark.parametrize(
    ("loss", "classes", "weight"),
    [
        (lambda: F.cross_entropy(scores(), IGNORED.flatten()), 5, 1),
        (lambda: F.cross_entropy(NET(ROWS).transpose(1, 2), IGNORED), 5, 1),
        (lambda: F.nll_loss(scores().log_softmax(1), IGNORED.flatten()) / 4, 5, 0.25),
        (lambda: 0.5 * F.cross_entropy(scores(), IGNORED.flatten(), label_smoothing=0.1), 5, 0.45),
        (lambda: summed() / MASK.sum(), 5, 1),
        (lambda: summed() / MASK.sum().item(), 5, 1),
        (lambda: summed() * (1 / MASK.sum()), 5, 1),
        (lambda: summed() * 2 / torch.tensor(48.0), 5, 0.5),  # the count of two ranks
        (lambda: summed() / 4, 5, 3),
        (lambda: F.cross_entropy(scores(), IGNORED.flatten()) * MASK.sum() / 24, 5, 0.5),
        (lambda: (singles() * MASK).sum() / MASK.sum(), 5, 1),
        (lambda: singles()[MASK].mean(), 5, 1),
        (lambda: singles().masked_fill(~MASK, 0).sum() / MASK.sum(), 5, 1),
        (lambda: (squares() * MASK[..., None]).sum() / MASK.sum(), 0, 1),
        (lambda: (squares().mean(-1) * MASK.float()).sum() / MASK.sum(), 0, 1),
        (lambda: NET(ROWS).square().mean() + summed() / MASK.sum(), 5, 1),
        (lambda: [summed() / MASK.sum(), NET(ROWS).mean()], 5, 1),
    ],
)
def test_counts_and_factors(loss, classes, weight):
    (facts,) = found(loss)
    assert (facts.classes, facts.passes, facts.steps) == (classes, [0, 1], [0, 1])
    assert facts.counts == [12, 12]
    assert facts.weights == pytest.approx([weight] * 2)
    assert "test_target_counts.py:" in facts.where


def test_losses_of_parts_count_together():
    """Two halves of the positions, each divided by the count of both."""
    (facts,) = found(lambda: sum(F.cross_entropy(NET(part), of, reduction="sum") / 12 for part, of in halves()))
    assert (facts.counts, facts.weights) == ([12, 12], pytest.approx([1, 1]))


def halves():
    return zip(ROWS.flatten(0, 1).chunk(2), IGNORED.flatten().chunk(2), strict=True)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(scores(), IGNORED.flatten(), weight=torch.rand(5)),
        lambda: NET(ROWS).square().mean(),
        lambda: squares().sum() / 24,
        lambda: (singles() * MASK).mean(),  # padding counts
        lambda: ((singles() * MASK).sum(1) / MASK.sum(1)).mean(),  # each sequence has the same weight
        lambda: (squares() * torch.rand(4, 6, 1)).sum() / 9,
        lambda: squares()[MASK].mean(),  # what is selected may be the largest
        lambda: summed() / torch.zeros(()),
    ],
)
def test_other_losses(loss):
    assert all(not facts.counts for facts in found(loss))


def test_the_highest_losses_are_no_mask():
    """Divided by the number of those that are kept, all together have another factor than 1."""
    (facts,) = found(lambda: (singles() * highest(singles())).sum() / highest(singles()).sum())
    assert facts.counts == [24, 24]
    assert facts.weights == pytest.approx([24 / 8] * 2)


def highest(losses):
    return losses >= losses.flatten().topk(8).values[-1]


SCRIPT = """
    import torch
    from torch import nn

    net = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(16):
        for part in range(2):
            target = torch.randint(0, 4, (20,))
            target[: 3 + 2 * step + part] = -100
            loss = nn.functional.cross_entropy(net(torch.randn(20, 3)), target) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WINDOWS = ("--warmup", "2", "--untraced", "3", "--light", "2", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_counts_until_the_untraced_window_ends(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().target_counts
    assert facts.where == "train.py:12"
    assert facts.steps == [1, 1, 2, 2, 3, 3, 4, 4]  # a recording begins with the end of the first step
    assert facts.counts == [15, 14, 13, 12, 11, 10, 9, 8]
    assert facts.weights == pytest.approx([0.5] * 8)
