"""Random numbers that steps draw: which lines count, and what ranks have in common."""

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.step_draws import StepDraws
from dptune.runfile.step_draws import StepDrawFacts, equal_draws

from .other_observer import through_another_observer


class Places:
    compiled = ()

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def alive(self, kind):
        return [each for each in self.optimizers if isinstance(each, kind)]


@pytest.fixture(autouse=True)
def ranks(monkeypatch):
    monkeypatch.setattr(process_rank, "world_size", lambda: 2)


def drawn(step, seed=0, rows=8, optimizers=()):
    """The facts of three steps of a rank that is seeded so."""
    torch.manual_seed(seed)
    observer = StepDraws(Places(*optimizers))
    observer.begin()
    for _ in range(3):
        if rows:
            observer.drawn(torch.zeros(rows, 3))
        step()
    observer.end()
    step()
    return observer.facts()


def noise():
    return torch.randn(8, 3)


class OfRank:
    def __init__(self, *facts):
        self.step_draws = [*facts]


def test_the_line_past_another_observer():
    (direct,) = drawn(noise)
    (facts,) = drawn(lambda: through_another_observer(torch.randn)(8, 3))
    assert facts.where.startswith(direct.where.partition(":")[0])
    assert facts.where != direct.where


def test_ranks_that_are_seeded_alike():
    ranks = [OfRank(*drawn(noise, seed)) for seed in (0, 0)]
    (facts,) = equal_draws(ranks, 3)
    assert (facts.operator, facts.size, len(facts.values), facts.of_batch) == ("randn", [8, 3], 3, True)
    assert "test_step_draws.py:" in facts.where
    assert equal_draws(ranks, 4) == []
    assert equal_draws(ranks[:1], 3) == []


def test_ranks_that_are_seeded_differently():
    assert equal_draws([OfRank(*drawn(noise, seed)) for seed in (0, 1)], 3) == []


def test_the_same_numbers_in_each_step_are_no_noise():
    def fixed():
        return torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    assert equal_draws([OfRank(*drawn(fixed, seed)) for seed in (0, 1)], 3) == []


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.randint(0, 9, (8,)),
        lambda: torch.rand_like(torch.zeros(8, 2)),
        lambda: torch.empty(8).uniform_(0, 1),
        lambda: torch.zeros(8, 3).normal_(),
    ],
)
def test_operators(step):
    (facts,) = drawn(step)
    assert len(facts.values) == len(set(facts.values)) == 3


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.rand(()),  # one number for all samples
        lambda: torch.randint(0, 9, (1,)),
        lambda: torch.randn(5, 3),  # another number of rows than samples
        lambda: torch.randperm(8),
        lambda: nn.functional.dropout(torch.ones(8, 3)),
        lambda: nn.init.normal_(torch.empty(8, 3)),
        torch.no_grad()(lambda: torch.randn(8, 3)),
    ],
)
def test_what_is_no_noise_of_samples(step):
    assert drawn(step) == []


@pytest.mark.parametrize(
    "like",
    [lambda weight: weight, lambda weight: weight.data, lambda weight: weight.grad],
)
def test_noise_of_parameters_is_the_same_on_all_ranks(like):
    weight = nn.Parameter(torch.zeros(8, 3))
    weight.grad = torch.zeros(8, 3)
    optimizer = torch.optim.SGD([weight], 0.1)
    assert drawn(lambda: torch.randn_like(like(weight)), optimizers=[optimizer]) == []
    assert drawn(lambda: like(weight).detach().normal_(), optimizers=[optimizer]) == []
    assert len(drawn(lambda: torch.randn_like(torch.zeros(8, 3)), optimizers=[optimizer])) == 1


def test_without_a_loader_any_rows_count():
    (facts,) = drawn(lambda: torch.randint(0, 100, (5,)), rows=0)
    assert not facts.of_batch


def test_what_prepares_batches_is_left_out():
    class Noisy(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.randn(8)

    assert drawn(lambda: next(iter(DataLoader(Noisy(), 8)))) == []


def test_one_process(monkeypatch):
    monkeypatch.setattr(process_rank, "world_size", lambda: 1)
    assert drawn(noise) == []


def test_lines_of_one_rank_only():
    facts = StepDrawFacts("train.py:9", "randn", [8], ["a", "b", "c"])
    assert equal_draws([OfRank(facts), OfRank()], 3) == []
    assert equal_draws([OfRank(facts), OfRank(facts)], 3) == [facts]
