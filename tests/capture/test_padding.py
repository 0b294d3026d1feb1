"""Padding in batches, counted by hand."""

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")
import torch

from dptune.capture.injected.observe.padding import Padding


def rows(*lengths, columns=20, filler=0):
    """Token ids 1, 2, ... in rows of these lengths."""
    made = torch.full((len(lengths), columns), filler)
    for at, length in enumerate(lengths):
        made[at, :length] = torch.arange(1, length + 1)
    return made


def seen(*batches):
    padding = Padding()
    for batch in batches:
        padding.note(7, batch)
    return padding.facts(7)


def test_columns_that_no_row_reaches():
    found = seen(rows(5, 8, 10, 7), rows(12, 3, 9, 8))
    assert (found.batches, found.columns, found.longest_columns) == (2, 40, 22)
    assert found.needless_share == pytest.approx(18 / 40)
    # 30 of 80 elements, and 32 of 80.
    assert found.filled_share == pytest.approx((30 / 80 + 32 / 80) / 2)


@pytest.mark.parametrize(
    "batch",
    [
        (rows(5, 8, 10, 7), torch.arange(4)),
        {"labels": torch.arange(4), "input_ids": rows(5, 8, 10, 7)},
        [{"attention_mask": (rows(5, 8, 10, 7) != 0).long()}, "names"],
        rows(5, 8, 10, 7, filler=-100),
    ],
)
def test_where_the_padded_tensor_is_found(batch):
    assert seen(batch).needless_share == pytest.approx(0.5)


def test_a_mask_counts_before_the_ids():
    """Where the id of the padding also ends texts, ids do not show the padding."""
    ids = rows(5, 8, 10, 7, filler=50256)
    ids[0, 2] = 50256
    assert seen(ids) is None
    mask = (torch.arange(20) < torch.tensor([[5], [8], [10], [7]])).long()
    assert seen({"input_ids": ids, "attention_mask": mask}).longest_columns == 10


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(200).reshape(10, 20),  # no padding: one column differs by chance from none
        torch.tensor([[0, 3, 0, 1] * 5, [2, 0, 0, 1] * 5]),  # counts, with zeros everywhere
        rows(5, 8).float(),
        rows(5, 8, columns=12),
        rows(5),
        torch.ones(20, 20, dtype=torch.long).tril(),  # a causal mask
        torch.zeros(4, 20, dtype=torch.long),
        "text",
        None,
    ],
)
def test_what_is_no_padded_text(batch):
    found = seen(batch)
    assert found is None or found.needless_share == 0


def test_only_the_first_batches_are_looked_at():
    assert seen(*[rows(5, 8)] * 50).batches == 32
