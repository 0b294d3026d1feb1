"""Times of a backward pass by operator: graphs are real, times of the parts by hand."""

import weakref

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.pass_times import PassClock, PassTimes, _part
from dptune.capture.injected.observe.unused_gradients import _leaves

# 5 -> 4 -> 3 -> 2 -> 1: a loss, the head (4 multiplies by a weight, 3 adds a bias), and the body.
CHAIN = {5: [4], 4: [3], 3: [2], 2: [1], 1: []}
TIMES = {5: 10, 4: 40, 3: 10, 2: 30, 1: 10}
LEAVES = {5: [], 4: [104], 3: [103], 2: [102], 1: [101]}


@pytest.mark.parametrize(
    ("unwanted", "alone", "mixed"),
    [
        ({104, 103}, 0, 50),  # the body needs what these operators pass on
        ({101, 102}, 40, 10),  # nothing behind 3 is needed, which computes what it passes on, too
        ({101}, 10, 30),  # 2 leads to an operator that is not
        ({101, 102, 103, 104}, 100, 0),
        (set(), 0, 0),
    ],
)
def test_the_part_that_only_some_gradients_need(unwanted, alone, mixed):
    times = PassTimes(spent_ns=TIMES, following=CHAIN, leaves=LEAVES)
    found = times.needless(unwanted)
    assert found == pytest.approx(tuple((alone + part * mixed) / 100 for part in (0.2, 0.45, 0.6)))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ConvolutionBackward0", (0.2, 0.45, 0.6)),
        ("NativeLayerNormBackward0", (0.0, 0.1, 0.25)),
        ("NativeBatchNormBackward0", (0.0, 0.1, 0.25)),
        ("MkldnnRnnLayerBackward0", (0.0, 0.0, 0.0)),
        ("PreluKernelBackward0", (0.0, 0.0, 0.0)),
    ],
)
def test_what_an_operator_spares_that_also_leads_to_others(name, parts):
    """Of 100 ns, 40 are in the operator of the head's weight, which the body needs, too."""
    times = PassTimes(spent_ns=TIMES, following=CHAIN, leaves=LEAVES, names={4: name})
    assert times.needless({104}) == pytest.approx(tuple(0.4 * part for part in parts))


@pytest.mark.parametrize(
    ("layer", "spares"),
    [(nn.LSTM(4, 4), False), (nn.PReLU(), False), (nn.LayerNorm(4), False), (nn.Linear(4, 4), True)],
)
def test_torch_names_layers_that_compute_all_gradients_at_once(layer, spares):
    """What it passes on to the layer before is wanted, its own weights are not: one operator computes both."""
    clock, given = PassClock(), nn.Linear(4, 4)
    result = layer(given(torch.randn(2, 3, 4)))
    loss = (result[0] if isinstance(result, tuple) else result).sum()
    times = clock.watch(_leaves([loss])[1])
    loss.backward()
    clock.end()
    wanted = {id(parameter) for parameter in given.parameters()}
    needed = times._leading_to(wanted)
    (mixed,) = [number for number in needed if times._mixes(number, needed, wanted)]
    assert (_part(times.names[mixed]).least > 0) is spares


def test_nothing_is_known_of_a_pass_without_times():
    assert PassTimes(following=CHAIN, leaves=LEAVES).needless({101}) is None


def test_the_time_in_operators_of_an_earlier_pass():
    assert PassTimes(spent_ns=TIMES).shared_with({1, 2, 9}) == (40, 100)


def trained(clock=None):
    """The gradients of a small model after two passes through one graph, and what the clock found."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 1)
    middle = body(torch.randn(4, 8))
    losses = [head(middle).square().mean(), middle.sum()]
    found = []
    for at, loss in enumerate(losses):
        _, operators = _leaves([loss])
        found.append(clock and clock.watch(operators))
        loss.backward(retain_graph=at == 0)
        if clock:
            clock.end()
    held = clock and weakref.ref(clock)  # by the hooks of the graph
    return [parameter.grad for parameter in (*body.parameters(), *head.parameters())], found, held


def test_each_operator_is_timed_once_per_pass_and_gradients_stay_bitwise_the_same():
    plain, _, _ = trained()
    timed, (first, second), clock = trained(PassClock())
    assert all(torch.equal(one, other) for one, other in zip(plain, timed, strict=True))
    assert set(first.spent_ns) == set(first.following)
    assert set(second.spent_ns) == set(second.following)
    shared_ns, whole_ns = second.shared_with(first.spent_ns)
    assert 0 < shared_ns < whole_ns == sum(second.spent_ns.values())  # the sum is in no earlier pass
    assert clock() is None  # the graph is gone, with its hooks


def test_on_an_accelerator_nothing_is_timed(monkeypatch):
    monkeypatch.setattr("dptune.capture.injected.observe.process_rank.device_kind", lambda: "cuda")
    _, found, _ = trained(PassClock())
    assert found == [None, None]


def test_large_graphs_are_not_timed(monkeypatch):
    monkeypatch.setattr("dptune.capture.injected.observe.pass_times._MOST", 3)
    _, found, _ = trained(PassClock())
    assert found == [None, None]
