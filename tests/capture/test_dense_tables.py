"""Embedding tables with dense gradients are seen in warm-up steps, with the rows that hold anything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dptune.capture.injected.observe.dense_tables import DenseTables
from dptune.capture.injected.observe.places import Places

ROWS, COLUMNS = 4096, 32
IDS = torch.tensor([[1, 5, 5], [9, 1, 4000]])  # four rows


class Net(nn.Module):
    def __init__(self, kind=nn.Embedding, tied=False, **more):
        super().__init__()
        self.towers = nn.ModuleDict({"user": kind(ROWS, COLUMNS, **more)})
        self.head = nn.Linear(COLUMNS, ROWS if tied else 2)
        if tied:
            self.head.weight = self.towers["user"].weight

    def forward(self, ids):
        return self.head(self.towers["user"](ids)).square().mean()


@pytest.fixture
def seen():
    """What is seen of steps of a model made by `make`."""
    constructors = {kind: kind.__init__ for kind in (nn.Embedding, nn.EmbeddingBag)}

    def steps(make, batches=(IDS,), update=torch.optim.SGD):
        watched = DenseTables(Places())
        watched.install()
        model = make()
        optimizer = update([one for one in model.parameters() if one.requires_grad], lr=0.1)
        watched.begin()
        for ids in batches:
            optimizer.zero_grad()
            model(ids).backward()
            optimizer.step()
            watched.stepped(optimizer)
        watched.end()
        return watched.facts()

    yield steps
    for kind, construct in constructors.items():
        kind.__init__ = construct


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_of_a_step_and_where_the_table_is(seen, kind):
    (table,) = seen(lambda: Net(kind))
    assert (table.rows, table.columns, table.used_rows, table.element_bytes) == (ROWS, COLUMNS, 4, 4)
    assert (table.module, table.optimizer) == ("towers.user", "SGD")
    assert "test_dense_tables.py:" in table.where
    assert table.gradient_bytes == ROWS * COLUMNS * 4


def test_the_most_of_two_steps(seen):
    (table,) = seen(Net, [IDS, torch.arange(100)[None], torch.arange(500)[None]])
    assert table.used_rows == 100


def test_all_rows_of_weights_tied_to_an_output_layer_are_used(seen):
    (table,) = seen(lambda: Net(tied=True))
    assert table.used_rows == ROWS


def test_sparse_frozen_and_small_tables_are_none(seen):
    def frozen():
        net = Net()
        net.towers.requires_grad_(False)
        return net

    assert seen(lambda: Net(sparse=True)) == []
    assert seen(frozen) == []
    assert seen(lambda: nn.Sequential(nn.Embedding(8, 2), nn.Linear(2, 2), nn.Flatten(0), _Mean()), [IDS % 8]) == []


class _Mean(nn.Module):
    def forward(self, rows):
        return rows.mean()


def test_gradients_are_left_as_they_are(seen):
    models = []

    def made():
        torch.manual_seed(0)
        models.append(Net())
        return models[-1]

    seen(made)
    torch.manual_seed(0)
    plain = Net()
    plain(IDS).backward()
    assert torch.equal(plain.towers["user"].weight.grad, models[0].towers["user"].weight.grad)
