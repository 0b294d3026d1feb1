"""Embeddings that losses use without gradients: two ranks in one process, the second of which is made up."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.gathered_embeddings import GatheredEmbeddings

ROWS, WIDTH = 6, 8
NET, OTHER = nn.Linear(5, WIDTH), nn.Linear(5, WIDTH)
SCALE = nn.Parameter(torch.tensor(2.0))
AT = torch.arange(ROWS)


class Gathering:
    """Gathers as `all_gather` does, and reports it."""

    def __init__(self, observer):
        self.observer = observer

    def __call__(self, local, function="all_gather"):
        parts = [local.detach().clone(), torch.randn(local.shape)]
        if function != "all_gather":
            whole = torch.cat(parts)
            self.observer.called(function, (whole, local), sys._getframe())
            return whole
        self.observer.called(function, (parts, local), sys._getframe())
        return parts


def found(loss, passes=3):
    observer = GatheredEmbeddings()
    gather = Gathering(observer)
    observer.begin()
    for _ in range(passes):
        rows = torch.randn(ROWS, 5)
        observer.before_pass(loss(gather, F.normalize(NET(rows), dim=1), F.normalize(OTHER(rows), dim=1)))
        observer.after_pass()
    facts = observer.facts()
    observer.end()
    return facts


def entropy(scores):
    return F.cross_entropy(scores, AT)


def in_list(gather, one, two):
    return entropy(SCALE * one @ torch.cat(gather(two)).T)


def in_tensor(gather, one, two):
    return entropy(one @ gather(two, "all_gather_into_tensor").T / 0.1)


def both(gather, one, two):
    return in_list(gather, one, two) + in_tensor(gather, two, one)


def stacked_sides(gather, one, two):
    sides = torch.cat(gather(torch.stack([one, two])), 1)
    return entropy(one @ sides[1].T) + entropy(two @ sides[0].T)


def stacked_ranks(gather, one, two):
    return (one @ torch.stack(gather(two)).mT).logsumexp((0, 2)).mean()


def normalised_later(gather, one, two):
    return entropy(one @ F.normalize(torch.cat(gather(3 * two)), dim=1).T)


def by_distance(gather, one, two):
    return entropy(-torch.cdist(one, torch.cat(gather(two))))


def by_similarity(gather, one, two):
    return entropy(F.cosine_similarity(one[:, None], torch.cat(gather(two))[None], dim=2))


def in_einsum(gather, one, two):
    return entropy(torch.einsum("id,jd->ij", one, torch.cat(gather(two))))


def in_16_bits(gather, one, two):
    with torch.autocast("cpu", torch.bfloat16):
        return entropy((one @ torch.cat(gather(two)).T).float())


def all_of_them(gather, one, two):
    ones, twos = torch.cat(gather(one)), torch.cat(gather(two))
    return F.cross_entropy(SCALE * ones @ twos.T, torch.arange(2 * ROWS))


@pytest.mark.parametrize(
    "loss",
    [
        *(in_list, in_tensor, both, stacked_sides, stacked_ranks, normalised_later, by_distance, by_similarity),
        *(in_einsum, in_16_bits, all_of_them),
    ],
)
def test_gathered_without_gradients(loss):
    facts = found(loss)[0]
    assert (facts.passes, facts.passes_seen) == (3, 3)
    assert facts.ranks == 2
    assert facts.width == WIDTH
    assert "test_gathered_embeddings.py:" in facts.where
    assert facts.through == ""


def put_back(gather, one, two):
    parts = gather(two)
    parts[0] = two
    return entropy(one @ torch.cat(parts).T)


def copied_back(gather, one, two):
    whole = gather(two, "all_gather_into_tensor").clone()
    whole[:ROWS] = two
    return entropy(one @ whole.T)


def local_apart(gather, one, two):
    return entropy(torch.cat([one @ two.T, one @ gather(two)[1].T], 1))


def detached(gather, one, two):
    return entropy(one @ torch.cat(gather(two.detach())).T)


def under_no_grad(gather, one, two):
    with torch.no_grad():
        keys = torch.cat(gather(two))
    return entropy(one @ keys.T)


def for_a_metric(gather, one, two):
    keys = torch.cat(gather(two))
    (one @ keys.T).argmax(1).float().mean().item()
    return entropy(one @ two.T)


def in_a_queue(gather, one, two):
    queue = torch.cat([torch.cat(gather(two)), torch.randn(20, WIDTH)])
    return entropy(one @ queue.T)


def mined(gather, one, two):
    hardest = (one @ torch.cat(gather(two)).T).detach().topk(3).values.amin(1)
    return (one * two).sum(1).sub(hardest).relu().mean()


def per_sample(gather, one, two):
    losses = F.cross_entropy(one @ two.T, AT, reduction="none")
    return (losses / torch.cat(gather(losses)).mean()).mean()


def own_rows(gather, one, two):
    gather(two)
    return entropy(one @ two.detach().T)


class WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gather, local):
        return torch.cat(gather(local))

    @staticmethod
    def backward(ctx, grad):
        return None, grad[:ROWS]


def differentiable(gather, one, two):
    return entropy(one @ WithGradient.apply(gather, two).T)


@pytest.mark.parametrize(
    "loss",
    [
        *(put_back, copied_back, local_apart, detached, under_no_grad, for_a_metric, in_a_queue, mined, per_sample),
        *(own_rows, differentiable),
    ],
)
def test_what_is_gathered_otherwise(loss):
    assert found(loss) == []


def test_what_an_earlier_pass_gathered():
    """As a queue that has as many rows as all ranks."""
    queue = []

    def earlier(gather, one, two):
        loss = entropy(one @ queue[-1].T) if queue else entropy(one @ two.T)
        queue.append(torch.cat(gather(two)))
        return loss

    assert found(earlier) == []


SCRIPT = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def scores(one, two):
        gathered = [torch.empty_like(two) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, two)
        return one @ torch.cat(gathered).T

    dist.init_process_group("gloo")
    net = DistributedDataParallel(nn.Linear(6, 16))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    target = torch.arange(8) + 8 * dist.get_rank()
    for step in range(12):
        rows = torch.randn(8, 6)
        loss = nn.functional.cross_entropy(scores(net(rows), net(rows + 1)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WINDOWS = ("--warmup", "4", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_function_that_gathers(profile):
    done = profile(SCRIPT, "--nproc-per-node", "2", *WINDOWS)
    assert done.status == 0, done.err
    for rank in (0, 1):
        (facts,) = done.facts(rank).gathered_embeddings
        assert (facts.where, facts.function) == ("scores (train.py:9)", "all_gather")
        assert (facts.rows, facts.local_rows, facts.width) == (16, 8, 16)
