"""Padding among the targets of losses: of models that take labels and a mask, and of other cross entropies."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

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
    observed.before_pass(model(input_ids=ids, attention_mask=mask, labels=labels))
    with torch.no_grad():
        model(ids, mask, ids)  # of a validation
    assert found_of(observed) == [("attention_mask", "Language", 9, 0, 1, None)]


@pytest.mark.parametrize(("pad", "end", "padding"), [(PAD, 1, 3), (PAD, PAD, None), (None, 1, None)])
def test_an_encoder_decoder_model(watching, batch, pad, end, padding):
    ids, mask = batch
    model = Language(is_encoder_decoder=True, pad_token_id=pad, eos_token_id=end)
    observed = watching()
    observed.before_pass(model(ids, torch.ones_like(mask), ids.masked_fill(mask == 0, PAD)))
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


class Masking(Language):
    """A model of the script that keeps padding out of its loss by itself."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.words(input_ids)).flatten(0, 1)
        return self.how(logits, labels, attention_mask)


MASKING = {
    "each": lambda logits, labels, mask: (
        (cross_entropy(logits, labels.flatten(), reduction="none") * mask.flatten()).sum() / mask.sum()
    ),
    "chosen": lambda logits, labels, mask: cross_entropy(logits[mask.flatten() == 1], labels[mask == 1]),
    "filled": lambda logits, labels, mask: cross_entropy(logits, labels.masked_fill(mask == 0, -100).flatten()),
    "ignored": lambda logits, labels, mask: cross_entropy(
        logits, labels.masked_fill(mask == 0, PAD).flatten(), ignore_index=PAD
    ),
    "no cross entropy": lambda logits, labels, mask: (logits.logsumexp(1) * mask.flatten()).mean(),
}


@pytest.mark.parametrize("how", MASKING)
def test_a_model_that_masks_its_loss_itself(watching, batch, how):
    ids, mask = batch
    model = Masking(MASKING[how])
    observed = watching()
    observed.before_pass(model(ids, mask, ids))
    assert all(padding == 0 for _, _, _, padding, _, _ in found_of(observed))


def test_a_model_that_shifts_its_labels(watching, batch):
    ids, mask = batch
    shifting = Masking(
        lambda logits, labels, mask: cross_entropy(
            logits.unflatten(0, labels.shape)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        )
    )
    observed = watching()
    observed.before_pass(shifting(ids, mask, ids))
    assert found_of(observed) == [("attention_mask", "Masking", 10, 3, 1, None)]


class OfTransformers(Language):
    """One whose forward method transformers defines."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        return self.words(input_ids).mean()


OfTransformers.forward.__module__ = "transformers.models.bert.modeling_bert"


def test_a_model_of_transformers_counts_its_labels(watching, batch):
    ids, mask = batch
    model = OfTransformers()
    observed = watching()
    model(ids, mask, ids)
    assert found_of(observed) == [("attention_mask", "OfTransformers", 12, 3, 1, None)]


@pytest.mark.parametrize("of_each_position", [False, True])
def test_a_table_of_segments_with_as_many_rows_as_classes(watching, batch, of_each_position):
    """Segment 0 is padding, class 0 is none."""
    _, mask = batch
    segments, head = nn.Embedding(3, 4, padding_idx=0), nn.Linear(4, 3)
    hidden = segments(mask * 2)
    targets = torch.zeros_like(mask).masked_fill(mask == 0, -100) if of_each_position else torch.zeros(2, dtype=int)
    logits = head(hidden).flatten(0, 1) if of_each_position else head(hidden.mean(1))
    observed = watching()
    observed.before_pass(cross_entropy(logits, targets.flatten()))
    assert all(padding == 0 for _, _, _, padding, _, _ in found_of(observed))


def tags_of(words, *, filler, ignore_index=-100, real=(1, 2, 3), padding_idx=PAD):
    """The loss of a recurrent tagger of packed sequences: a tag for each word, `filler` for padding."""
    table = nn.Embedding(WORDS, 4, padding_idx=padding_idx)
    layer, head = nn.LSTM(4, 5, batch_first=True, bidirectional=True), nn.Linear(10, 6)
    packed = pack_padded_sequence(table(words), (words != PAD).sum(1), batch_first=True, enforce_sorted=False)
    logits = head(pad_packed_sequence(layer(packed)[0], batch_first=True)[0])
    tags = torch.tensor(real)[words % len(real)].masked_fill(words == PAD, filler)
    return cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=ignore_index)


@pytest.fixture
def words(batch):
    ids, mask = batch
    return ids.masked_fill(mask == 0, PAD)[:, :5]


def test_a_token_that_only_padding_has_where_the_model_predicts_fewer(watching, batch):
    observed = watching()
    observed.before_pass(loss_of(batch, classes=40))
    assert found_of(observed) == [("place", "40 classes", 12, 3, 1, PAD)]


def test_a_class_that_only_padding_has(watching, words):
    observed = watching()
    observed.before_pass(tags_of(words, filler=0))
    observed.before_pass(tags_of(words[:, :4], filler=0))  # no padding
    assert found_of(observed) == [("place", "6 classes", 10 + 8, 1, 2, 0)]


@pytest.mark.parametrize(
    "how",
    [
        {"filler": 0, "ignore_index": 0},
        {"filler": -100},
        {"filler": 0, "real": (0, 1, 2)},  # a class of words, too
        {"filler": 0, "real": (1, 1, 1)},  # two classes: the embedding may tell them apart
        {"filler": 0, "padding_idx": None},
    ],
)
def test_a_class_that_may_not_be_padding(watching, words, how):
    observed = watching()
    observed.before_pass(tags_of(words, **how))
    assert all(padding == 0 for _, _, _, padding, _, _ in found_of(observed))


def test_a_class_that_padding_has_and_words_of_another_pass(watching, words):
    observed = watching()
    observed.before_pass(tags_of(words, filler=0))
    observed.before_pass(tags_of(words[:, :4], filler=0, real=(0, 1, 2)))
    assert found_of(observed) == []


def test_a_word_in_the_middle_is_no_padding(watching):
    """An embedding of two kinds of words, one of them with zeros; its class is a class of its own."""
    kinds = torch.tensor([[PAD, 10, PAD, 11, 12, PAD], [10, PAD, 11, 12, PAD, PAD]])
    table, head = nn.Embedding(WORDS, 4, padding_idx=PAD), nn.Linear(4, 6)
    tags = (kinds % 3 + 1).masked_fill(kinds == PAD, 0)
    observed = watching()
    observed.before_pass(cross_entropy(head(table(kinds)).flatten(0, 1), tags.flatten()))
    assert found_of(observed) == []
