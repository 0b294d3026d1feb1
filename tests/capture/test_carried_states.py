"""Recurrent layers that start a batch with the state that they had after the previous batch."""

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.carried_states import CarriedStates

SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    rnn, state = nn.LSTM(8, 5, batch_first=True), None
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.01)
    for rows in DataLoader(torch.randn(80, 6, 8), batch_size=4, shuffle=True):
        outputs, state = rnn(rows, state)
        state = tuple(part.detach() for part in state)
        optimizer.zero_grad()
        outputs.square().mean().backward()
        optimizer.step()
"""
WINDOWS = ("--warmup", "5", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_counts_the_batches_and_names_the_line(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (found,) = done.facts().carried_states
    assert (found.module, found.where) == ("LSTM", "train.py:9")
    assert found.batches == found.batches_seen >= 2


class Uncompiled:
    compiled = ()


def watched(train, batches=5):
    """What is found where `train` gets one batch after another; its parts are its optimizer steps."""
    observer = CarriedStates(Uncompiled())
    before = nn.LSTM.forward
    observer.begin()
    try:
        for _ in range(batches):
            observer.drawn(None)
            train(torch.randn(4, 6, 8))
    finally:
        observer.end()
    assert nn.LSTM.forward is before
    return [(found.module, found.batches, found.batches_seen) for found in observer.facts()]


class Kept:
    """A layer, and what becomes of its state after a batch."""

    def __init__(self, layer, keep):
        self.layer, self.keep, self.state = layer, keep, None

    def __call__(self, rows):
        _, state = self.layer(rows, self.state)
        self.state = self.keep(state)


def detached(state):
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach().clone()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_state_that_goes_on_in_the_next_batch(kind):
    assert watched(Kept(kind(8, 5, batch_first=True), detached)) == [(kind.__name__, 4, 4)]


def test_the_line_of_the_script_that_calls_the_layer():
    observer = CarriedStates(Uncompiled())
    observer.begin()
    layer, state = nn.GRU(8, 5, batch_first=True), None
    for _ in range(3):
        observer.drawn(None)
        _, state = layer(torch.randn(4, 6, 8), hx=state)
        state = state.detach()
    observer.end()
    (found,) = observer.facts()
    first = test_the_line_of_the_script_that_calls_the_layer.__code__.co_firstlineno
    assert found.where.endswith(f"test_carried_states.py:{first + 6}")


@pytest.mark.parametrize(
    "keep", [lambda state: None, lambda state: tuple(map(torch.zeros_like, state))], ids=["none", "zeros"]
)
def test_a_state_that_starts_again(keep):
    assert watched(Kept(nn.LSTM(8, 5, batch_first=True), keep)) == []


def test_the_parts_of_a_batch_continue_one_another():
    """Truncated backpropagation through time: each batch starts without a state."""
    layer = nn.GRU(8, 5, batch_first=True)

    def train(rows):
        state = None
        for part in rows.chunk(3, dim=1):
            _, state = layer(part, state)
            state = state.detach()

    assert watched(train) == []


def test_a_cell_whose_first_position_gets_the_state_of_the_last():
    cell, kept = nn.LSTMCell(8, 5), [None]

    def train(rows):
        for position in rows.unbind(1):
            kept[0] = cell(position, kept[0] and detached(kept[0]))

    assert watched(train) == [("LSTMCell", 4, 4)]


def test_evaluation_and_passes_without_gradients_do_not_count():
    assert watched(Kept(nn.GRU(8, 5, batch_first=True).eval(), detached)) == []
    with torch.no_grad():
        assert watched(Kept(nn.GRU(8, 5, batch_first=True), detached)) == []
