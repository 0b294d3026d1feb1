"""Padding among the targets of losses: of models that take labels and a mask, and of other cross entropies."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dptune.capture.injected.observe.counted_padding import CountedPadding
from dptune.capture.injected.observe.module_calls import ModuleCalls

WORDS, PAD = 50, 7


class Places:
    """Of a script that compiles nothing."""

    compiled = ()


class Language(nn.Module):
    """Takes what a model of transformers takes."""

    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.words = nn.Embedding(WORDS, 4)
        self.head = nn.Linear(4, WORDS)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.words(input_ids))
        return cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.fixture
def watching():
    calls = ModuleCalls()
    found = CountedPadding(Places(), calls)

    def begin():
        found.begin()
        calls.begin()
        return found

    yield begin
    calls.end()
    found.end()


@pytest.fixture
def batch():
    """Two rows of six, of which three positions are padding."""
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
    return torch.arange(12).reshape(2, 6) + 10, mask


def found_of(observed):
    observed.end()
    return [(one.shown_by, one.model, one.targets, one.padding, one.passes, one.pad) for one in observed.facts()]


def test_labels_where_the_mask_is_zero(watching, batch):
    ids, mask = batch
    model = Language()
    observed = watching()
    for _ in range(6):
        observed.before_pass(model(ids, attention_mask=mask, labels=ids.clone()))
    assert found_of(observed) == [("attention_mask", "Language", 4 * 12, 4 * 3, 4, None)]


def test_labels_that_are_ignored(watching, batch):
    ids, mask = batch
    model = Language()
    observed = watching()
    labels = ids.masked_fill(mask == 0, -100)
    model(input_ids=ids, attention_mask=mask, labels=labels)
    with torch.no_grad():
        model(ids, mask, ids)  # of a validation
    assert found_of(observed) == [("attention_mask", "Language", 9, 0, 1, None)]


@pytest.mark.parametrize(("pad", "end", "padding"), [(PAD, 1, 3), (PAD, PAD, None), (None, 1, None)])
def test_an_encoder_decoder_model(watching, batch, pad, end, padding):
    ids, mask = batch
    model = Language(is_encoder_decoder=True, pad_token_id=pad, eos_token_id=end)
    observed = watching()
    model(ids, torch.ones_like(mask), ids.masked_fill(mask == 0, PAD))
    expected = [] if padding is None else [("pad_token_id", "Language", 12, padding, 1, PAD)]
    assert found_of(observed) == expected


def loss_of(batch, *, classes=WORDS, padding_idx=PAD, **kwargs):
    ids, mask = batch
    words, head = nn.Embedding(WORDS, 4, padding_idx=padding_idx), nn.Linear(4, classes)
    targets = ids.masked_fill(mask == 0, PAD)
    loss = cross_entropy(head(words(targets)).flatten(0, 1), targets.flatten(), **kwargs)
    return loss if loss.dim() == 0 else (loss * mask.flatten()).mean()


def test_targets_that_an_embedding_says_are_padding(watching, batch):
    observed = watching()
    observed.before_pass(loss_of(batch))
    assert found_of(observed) == [("padding_idx", f"{WORDS} classes", 12, 3, 1, PAD)]


@pytest.mark.parametrize(
    "how",
    [
        {"ignore_index": PAD},
        {"reduction": "none"},  # masked later
        {"weight": torch.ones(WORDS)},
        {"padding_idx": None},
        {"classes": 40},  # other classes than words
    ],
)
def test_targets_that_may_not_be_padding(watching, batch, how):
    observed = watching()
    observed.before_pass(loss_of(batch, **how))
    assert found_of(observed) == []


def test_a_model_is_left_as_it_was(watching, batch):
    ids, mask = batch
    model = Language()
    call = nn.Module.__call__
    observed = watching()
    assert nn.Module.__call__ is not call
    assert not model._forward_pre_hooks
    model(ids, mask, ids)
    observed._calls.end()
    assert nn.Module.__call__ is call
