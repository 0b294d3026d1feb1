"""Padding in batches, counted by hand. A batch counts if a layer of the model reads it."""

import contextlib

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch
from torch import nn

from dptune.capture.injected.observe.module_calls import ModuleCalls
from dptune.capture.injected.observe.padding import Padding


def rows(*lengths, columns=20, filler=0):
    """Token ids 1, 2, ... in rows of these lengths."""
    made = torch.full((len(lengths), columns), filler)
    for at, length in enumerate(lengths):
        made[at, :length] = torch.arange(2, length + 2)
    return made


def mask(*lengths, columns=20):
    return (torch.arange(columns) < torch.tensor(lengths)[:, None]).long()


def first(batch):
    """The first tensor of a batch."""
    if isinstance(batch, torch.Tensor):
        return batch
    return next(first(part) for part in (batch.values() if isinstance(batch, dict) else batch))


def ids_of(batch):
    return batch["input_ids"] if isinstance(batch, dict) else first(batch)


def seen(*batches, layer=None, read=ids_of):
    """What is found after a layer has read each batch."""
    padding, calls = Padding(), ModuleCalls()
    layer = nn.Embedding(50_300, 2) if layer is None else layer
    padding.begin(calls)
    calls.begin()
    try:
        for batch in batches:
            padding.note(7, batch)
            with contextlib.suppress(IndexError, RuntimeError, StopIteration, TypeError):  # no input of this layer
                layer(read(batch))
    finally:
        calls.end()
        padding.end()
    return padding.facts(7)


def test_columns_that_no_row_reaches():
    found = seen(rows(5, 8, 10, 7), rows(12, 3, 9, 8))
    assert (found.batches, found.columns, found.longest_columns) == (2, 40, 22)
    assert found.needless_share == pytest.approx(18 / 40)
    # 30 of 80 elements, and 32 of 80.
    assert found.filled_share == pytest.approx((30 / 80 + 32 / 80) / 2)


def test_padding_at_the_start_of_rows():
    found = seen(rows(5, 8, 10, 7).flip(1))
    assert (found.columns, found.longest_columns) == (20, 10)
    ids = rows(5, 8, 10, 7).flip(1)
    found = seen({"input_ids": ids, "attention_mask": mask(5, 8, 10, 7).flip(1)})
    assert (found.columns, found.longest_columns, found.filled_share) == (20, 10, 30 / 80)


@pytest.mark.parametrize(
    "batch",
    [
        (rows(5, 8, 10, 7), torch.arange(4)),
        {"labels": torch.arange(4), "input_ids": rows(5, 8, 10, 7)},
        [{"attention_mask": mask(5, 8, 10, 7), "input_ids": rows(5, 8, 10, 7)}, "names"],
        (rows(5, 8, 10, 7), rows(5, 8, 10, 7, filler=-100)),  # a target for each token
        (rows(5, 8, 10, 7), torch.arange(20).repeat(4, 1)),  # position numbers
        (rows(5, 8, 10, 7), mask(5, 8, 10, 7) == 0),  # true where the padding is
        (rows(5, 8, 10, 7), torch.randn(4, 3, 20, 20)),  # images of the same width
    ],
)
def test_where_the_padded_tensor_is_found(batch):
    assert seen(batch, read=lambda batch: ids_of(batch[0] if isinstance(batch, list) else batch)).needless_share == (
        pytest.approx(0.5)
    )


@pytest.mark.parametrize(
    "read",
    [
        lambda ids: ids[:, :-1],
        lambda ids: ids.clone()[:, :-1],
        lambda ids: ids.clone()[:, 1:],
        lambda ids: ids.T.clone(),
        lambda ids: torch.where(torch.arange(20) % 5 == 0, 9, ids),  # some tokens are masked
        lambda ids: ids.clone()[:, None],
    ],
)
def test_how_a_model_may_read_its_ids(read):
    assert seen(rows(5, 8, 10, 7), read=read).longest_columns == 10


def test_a_mask_counts_before_the_ids():
    """Where the id of the padding also ends texts, ids do not show the padding."""
    ids = rows(5, 8, 10, 7, filler=50256)
    ids[0, 2] = 50256
    assert seen(ids) is None
    assert seen({"input_ids": ids, "attention_mask": mask(5, 8, 10, 7)}).longest_columns == 10


def test_batches_without_padding_count_as_full():
    found = seen(rows(5, 8, 10, 7), torch.arange(2, 82).reshape(4, 20))
    assert (found.batches, found.columns, found.longest_columns) == (2, 40, 30)


@pytest.mark.parametrize("inverted", [False, True])
def test_features_with_a_mask(inverted):
    features = torch.randn(4, 20, 3) * mask(5, 8, 10, 7)[:, :, None]
    masked = mask(5, 8, 10, 7) == (0 if inverted else 1)
    assert seen((features, masked), layer=nn.Linear(3, 2), read=first).longest_columns == 10
    assert seen((features.transpose(1, 2), masked), layer=nn.Conv1d(3, 2, 1), read=first).longest_columns == 10
    assert seen((torch.randn(4, 3, 8, 8), features, masked), layer=nn.Conv2d(3, 2, 1), read=first) is None  # targets
    assert seen((torch.randn(4, 20, 3), masked), layer=nn.Linear(3, 2), read=first) is None


def test_targets_for_each_position_are_no_padding():
    """Classes of phases: each row starts with 0 and ends with 2, and waves of floats are what the model reads."""
    phase = (torch.arange(64) >= torch.tensor([[9], [20], [15]])).long()
    phase += (torch.arange(64) >= torch.tensor([[30], [40], [33]])).long()
    waves = torch.randn(3, 3, 512)
    assert seen((waves, phase), layer=nn.Conv1d(3, 2, 7), read=first) is None
    assert seen((waves, phase), layer=nn.Embedding(3, 2), read=lambda batch: batch[1]).batches == 1  # it is read
    ids = torch.arange(1, 193).reshape(3, 64)
    assert seen((ids, phase), read=first) is None or seen((ids, phase), read=first).needless_share == 0


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(200).reshape(10, 20),  # no padding: one column differs by chance from none
        torch.tensor([[0, 3, 0, 1] * 5, [2, 0, 0, 1] * 5]),  # counts, with zeros everywhere
        rows(5, 8).float(),
        rows(5, 8, columns=12),
        rows(5),
        torch.ones(20, 20, dtype=torch.long).tril(),  # a causal mask
        torch.ones(20, 20, dtype=torch.long).triu(),
        torch.zeros(4, 20, dtype=torch.long),
        mask(5, 8, 10, 7),  # classes in order, one after the other
        (rows(5, 8, 10, 7), torch.randn(4, 20)),  # values at each position, also where the ids are the same
        "text",
        None,
    ],
)
def test_what_is_no_padded_text(batch):
    found = seen(batch, read=first)
    assert found is None or found.needless_share == 0


def test_images_with_borders_are_no_padded_text():
    pixels = torch.zeros(4, 28, 28, dtype=torch.long)
    pixels[:, 6:20, 6:20] = torch.randint(1, 256, (4, 14, 14), generator=torch.Generator().manual_seed(0))
    assert seen(pixels.flatten(1)) is None


def test_only_the_first_batches_are_looked_at():
    assert seen(*[rows(5, 8)] * 50).batches == 32


def test_nothing_is_kept_of_what_no_layer_reads():
    assert seen(rows(5, 8), read=lambda ids: ids + 1000) is None
    padding = Padding()
    padding.note(7, rows(5, 8))
    assert padding.facts(7) is None
