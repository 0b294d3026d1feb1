"""Gradients that ranks average themselves, and the weights that they apply them to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe import process_rank
from dptune.capture.injected.observe.step_values import SampledSteps
from dptune.runfile.facts import Facts
from dptune.runfile.step_values import different_weights

SCRIPT = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(32, 32)
    {made_equal}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        model(torch.randn(4, 32)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
BROADCAST = "[dist.broadcast(parameter.data, src=0) for parameter in model.parameters()]"
RANK_0_LOADS = (
    "model = torch.nn.parallel.DistributedDataParallel(model); "
    "dist.get_rank() or model.module.load_state_dict(torch.nn.Linear(32, 32).state_dict())"
)
WINDOWS = ("--warmup", "3", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue", "--no-links")


@pytest.mark.records
@pytest.mark.parametrize(
    ("made_equal", "tensors"),
    [("", 2), (BROADCAST, None), pytest.param(RANK_0_LOADS, 2, marks=pytest.mark.thorough)],
)
def test_a_recording_of_two_ranks(profile, made_equal, tensors):
    done = profile(SCRIPT.format(made_equal=made_equal), "--nproc-per-node", "2", *WINDOWS)
    assert done.status == 0, done.err
    ranks = [done.facts(rank) for rank in (0, 1)]
    assert [len(facts.step_values[0].steps) for facts in ranks] == [2, 2]
    found = different_weights(ranks, 0.01)
    assert (found and found.tensors) == tensors
    if found is not None:
        assert (found.optimizer, found.where, found.ranks, found.sampled) == ("SGD", "train.py:8", 2, 2)
        assert found.distinct == 64 + 32
    gradients = [[values.gradients for values in facts.step_values[0].steps] for facts in ranks]
    assert gradients[0] == gradients[1]


class Made:
    """The places of a script without an engine."""

    engine = None

    def alive(self, kind):
        return []

    def line(self, thing):
        return "train.py:9"


@pytest.fixture(autouse=True)
def together(monkeypatch):
    monkeypatch.setattr(process_rank, "together", lambda: True)


def parameters(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(12, 8).to(dtype)), nn.Parameter(torch.randn(8).to(dtype))]


def gradients_of(weights, seed=5):
    torch.manual_seed(seed)
    return [torch.randn(weight.shape).to(weight.dtype) for weight in weights]


def recorded(optimizer, gradients, steps=3, closure=None):
    """The facts of a rank whose steps use these gradients; None: what each of its parameters has."""
    watched = SampledSteps(Made())
    watched.begin()
    for _ in range(steps):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        optimizer.step(*([closure] if closure else []))
    watched.end()
    return Facts(rank=0, step_values=watched.facts())


def ranks_of(made, gradients=None, optimizer=torch.optim.SGD):
    """Facts of ranks with these weights, and the gradients of the first, or these."""
    gradients = gradients or [gradients_of(made[0])] * len(made)
    return [recorded(optimizer(weights, lr=1e-3), each) for weights, each in zip(made, gradients, strict=True)]


def test_the_same_gradients_for_different_weights():
    found = different_weights(ranks_of([parameters(0), parameters(1)]), 0.01)
    assert (found.optimizer, found.where, found.ranks, found.tensors, found.sampled) == ("SGD", "train.py:9", 2, 2, 2)
    assert 0.01 < found.difference < 2
    assert found.distinct == 64 + 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_quiet_where_the_weights_are_equal(dtype):
    assert different_weights(ranks_of([parameters(0, dtype), parameters(0, dtype)]), 0.01) is None


def test_16_bit_weights():
    made = [parameters(0, torch.bfloat16), parameters(1, torch.bfloat16)]
    assert different_weights(ranks_of(made), 0.01).tensors == 2


def test_quiet_where_gradients_differ():
    """Local SGD, tensor parallelism, or an ensemble; also if a single tensor's do: a bias on each rank of a sum."""
    made = [parameters(0), parameters(1)]
    local = [gradients_of(made[0], 5), gradients_of(made[1], 6)]
    assert different_weights(ranks_of(made, local), 0.01) is None
    half = [local[0], [local[1][0], local[0][1]]]
    assert different_weights(ranks_of([parameters(0), parameters(1)], half), 0.01) is None


def test_a_new_layer_that_differs_is_found_among_equal_ones():
    """The last tensor of many, which samples hold."""
    made = [[nn.Parameter(torch.ones(64)) for _ in range(200)] + parameters(seed) for seed in (0, 1)]
    found = different_weights(ranks_of(made), 0.01)
    assert (found.tensors, found.sampled) == (1, 32)


def test_two_of_four_ranks():
    """Averaged in pairs: the second pair has equal weights."""
    made = [parameters(0), parameters(1), parameters(2), parameters(2)]
    pairs = [gradients_of(made[0], 5)] * 2 + [gradients_of(made[0], 6)] * 2
    assert different_weights(ranks_of(made, pairs), 0.01).ranks == 2


def test_negative_zeros_and_gradients_that_are_missing():
    made = [parameters(0), parameters(1)]
    zero = [torch.zeros(12, 8), None]
    negative = [-torch.zeros(12, 8), None]
    found = different_weights(ranks_of(made, [zero, negative]), 0.01)
    assert (found.sampled, found.distinct) == (1, 0)  # the rule leaves out gradients of zero
    some = gradients_of(made[0])
    assert different_weights(ranks_of([parameters(0), parameters(1)], [some, [some[0], None]]), 0.01) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_left_out(value):
    gradients = [torch.full((12, 8), value), torch.ones(8)]
    (facts, _) = ranks_of([parameters(0), parameters(1)], [gradients, gradients])
    assert facts.step_values[0].steps == []


class Averaging(torch.optim.SGD):
    """Averages inside its step, as that of Horovod: before it, each rank has gradients of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            for weight, mean in zip(group["params"], gradients_of(group["params"]), strict=True):
                weight.grad.copy_(mean)
        return super().step(closure)


def test_an_optimizer_that_averages_in_its_step():
    made = [parameters(0), parameters(1)]
    local = [gradients_of(made[0], 7), gradients_of(made[0], 8)]
    ranks = ranks_of(made, local, Averaging)
    assert [values.step for values in ranks[0].step_values[0].steps] == [2, 3]
    assert different_weights(ranks, 0.01).tensors == 2


def test_gradients_of_a_closure():
    ranks = []
    for seed in (0, 1):
        weights = parameters(seed)

        def closure(weights=weights):
            for weight, gradient in zip(weights, gradients_of(weights), strict=True):
                weight.grad = gradient
            return torch.zeros(())

        ranks.append(recorded(torch.optim.SGD(weights, lr=1e-3), [None, None], closure=closure))
    assert different_weights(ranks, 0.01).tensors == 2


def test_only_the_last_common_step_counts():
    """Weights that are broadcast after the first step, as Horovod's callback does it."""
    made = [parameters(0), parameters(1)]
    gradients = gradients_of(made[0])
    ranks = []
    for weights in made:
        watched = SampledSteps(Made())
        watched.begin()
        optimizer = torch.optim.SGD(weights, lr=1e-3)
        for step in range(2):
            for weight, gradient, equal in zip(weights, gradients, parameters(3), strict=True):
                weight.grad = gradient.clone()
                if step:
                    weight.data.copy_(equal)
            optimizer.step()
        watched.end()
        ranks.append(Facts(rank=0, step_values=watched.facts()))
    assert len(ranks[0].step_values[0].steps) == 2
    assert different_weights(ranks, 0.01) is None


def test_a_rank_that_is_alone_and_shards_are_not_sampled(monkeypatch):
    monkeypatch.setattr(Made, "engine", "deepspeed")
    assert [facts.step_values for facts in ranks_of([parameters(0), parameters(1)])] == [[], []]
    monkeypatch.setattr(Made, "engine", None)
    monkeypatch.setattr(process_rank, "together", lambda: False)
    assert ranks_of([parameters(0)])[0].step_values == []
