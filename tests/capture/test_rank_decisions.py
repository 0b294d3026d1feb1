"""Conditions that compare a score with the best one so far, from the source of a training loop."""

import sys

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.rank_decisions import decisions
from dptune.runfile.decisions import DecisionFacts, different_decisions

LOSSES = (0.75, 0.5, 0.625)


class Look:
    """Collects the decisions when it is called: in the place of an optimizer step."""

    def __init__(self):
        self.found = []

    def step(self):
        self.found = decisions(sys._getframe(1), 7)


class Stopper:
    def __init__(self, patience):
        self.patience, self.counter, self.best_loss = patience, 0, None

    def __call__(self, loss):
        if self.best_loss is None or loss < self.best_loss:
            self.best_loss, self.counter = loss, 0
        else:
            self.counter += 1
        return self.counter >= self.patience


class Trainer:
    def __init__(self):
        self.best_acc, self.kept, self.model = 0.0, None, nn.Linear(1, 1)

    def keep(self, acc):
        if acc > self.best_acc:
            self.best_acc = acc
            self.kept = self.model.state_dict()


def save(weights):
    return weights


def breaks(look):
    best, waited = float("inf"), 0
    for loss in LOSSES:
        look.step()
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
            if waited > 3:
                break


def calls_an_object(look):
    stopper = Stopper(5)
    for loss in LOSSES:
        look.step()
        if stopper(loss):
            break


def keeps(look):
    trainer = Trainer()
    for loss in LOSSES:
        look.step()
        trainer.keep(loss)


def lowers_the_rate(look):
    groups, best = [{"lr": 1.0}], torch.tensor(9.0)
    for loss in LOSSES:
        look.step()
        if loss < best:
            best = torch.tensor(loss)
        else:
            groups[0]["lr"] *= 0.5


def counts_in_the_condition_of_its_loop(look):
    best, waited, at = 9.0, 0, iter(LOSSES)
    while waited < 1:
        look.step()
        loss = next(at)
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1


def all_reduce(tensor):
    return tensor


def broadcast_object_list(values, source):
    return values, source


def agrees_by_a_tensor(look):
    best, bad_epochs = 9.0, 0
    for loss in LOSSES:
        look.step()
        if loss < best:
            best, bad_epochs = loss, 0
        else:
            bad_epochs += 1
        flag = torch.tensor([float(bad_epochs > 3)])
        all_reduce(flag)
        if flag.item():
            break


def agrees_with_rank_0(look):
    stopper = Stopper(3)
    for loss in LOSSES:
        look.step()
        decided = [stopper(loss)]
        broadcast_object_list(decided, 0)
        if decided[0]:
            break


def agrees_but_keeps(look):
    best, waited = 9.0, 0
    for loss in LOSSES:
        look.step()
        if loss < best:
            best, waited = loss, 0
            save(best)
        else:
            waited += 1
        if all_reduce(torch.tensor(waited)) > 3:
            break


def reduces_something_else(look):
    best, waited = 9.0, 0
    for loss in LOSSES:
        look.step()
        all_reduce(torch.tensor(loss * 2))
        if loss < best:
            best, waited = loss, 0
        else:
            waited += 1
            if waited > 3:
                break


def counts_for_the_log(look):
    best, epochs_since_best = 9.0, 0
    for loss in LOSSES:
        look.step()
        if loss < best:
            best, epochs_since_best = loss, 0
        else:
            epochs_since_best += 1
        print(epochs_since_best)


def of_one_rank(look):
    best, rank = 5.0, 0
    for loss in LOSSES:
        look.step()
        if rank == 0 and loss < best:
            best = loss
            save(best)
        if rank != 0:
            continue
        if loss < best:
            best = loss
            save(best)


def of_the_main_process(look):
    best, is_main = 5.0, True
    for loss in LOSSES:
        look.step()
        if is_main:
            print(loss)
            if loss < best:
                best = loss
                save(best)


def logs(look):
    best = 5.0
    for loss in LOSSES:
        look.step()
        if loss < best:
            best = loss
            print(best)


def has_not_compared(look):
    best = float("inf")
    for _ in LOSSES:
        look.step()
    if LOSSES[0] < best:
        save(best)


def not_yet(look):
    best = float("inf")
    for loss in LOSSES[:1]:
        look.step()
        if loss < best:
            best = loss
            save(best)


def compares_something_else(look):
    most = 5.0
    for loss in LOSSES:
        look.step()
        if loss < most:
            most = loss
            save(most)


def found(loop):
    look = Look()
    loop(look)
    return [(facts.best, facts.value, facts.step, facts.ends, facts.keeps) for facts in look.found]


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (breaks, ("best", 0.5, 7, True, False)),
        (calls_an_object, ("best_loss", 0.5, 7, True, False)),
        (keeps, ("best_acc", 0.75, 7, False, True)),
        (counts_in_the_condition_of_its_loop, ("best", 0.5, 7, True, False)),
        (reduces_something_else, ("best", 0.5, 7, True, False)),
        (agrees_but_keeps, ("best", 0.5, 7, False, True)),
        (lowers_the_rate, ("best", 0.5, 7, False, False)),
    ],
)
def test_decisions(loop, expected):
    assert found(loop) == [expected]


@pytest.mark.parametrize(
    "loop",
    [
        *(of_one_rank, of_the_main_process, logs, has_not_compared, not_yet, compares_something_else),
        *(agrees_by_a_tensor, agrees_with_rank_0, counts_for_the_log),
    ],
)
def test_none(loop):
    assert found(loop) == []


class OfRank:
    def __init__(self, *facts):
        self.decisions = [*facts]


def test_values_that_differ_between_ranks():
    ranks = [OfRank(DecisionFacts("train.py:9", "best", value, 40)) for value in (0.5, 0.6)]
    (decision,) = different_decisions(ranks, 1e-4)
    assert decision.values == (0.5, 0.6)
    assert different_decisions(ranks, 0.2) == []
    assert different_decisions(ranks[:1], 1e-4) == []
    other = OfRank(DecisionFacts("train.py:9", "best", 0.6, 41))  # after another step
    assert different_decisions([ranks[0], other], 1e-4) == []
    assert different_decisions([ranks[0], OfRank()], 1e-4) == []
