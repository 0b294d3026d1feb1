"""How far targets are ahead of embedded ids: which losses and ids are compared, and what is counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe import shift_lines
from dptune.capture.injected.observe.shifted_labels import ShiftedLabels

WORDS = 1000


class Places:
    """Of a script that compiles nothing."""

    compiled = ()


class Compiled:
    """Of a script that compiles its model."""

    compiled = ("train.py:3",)


def seen(*losses, places=Places):
    watched = ShiftedLabels(places())
    watched.begin()
    for loss in losses:
        watched.before_pass(loss)
    watched.end()
    return [(facts.targets, facts.after_next, facts.following) for facts in watched.facts()]


@pytest.fixture(autouse=True)
def no_other_script(monkeypatch):
    """Lines are looked for in the source of this file, not of all tests."""
    monkeypatch.setattr(shift_lines, "script_files", lambda: {__file__: {}})


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.ModuleList([nn.Embedding(WORDS, 8), nn.Embedding(12, 8), nn.Linear(8, WORDS)])


@pytest.fixture(scope="module")
def text():
    return torch.randint(0, WORDS, (4, 12), generator=torch.Generator().manual_seed(1))


def logits_of(model, ids):
    words, places, head = model
    return head(words(ids) + places(torch.arange(ids.shape[1])[None]))


def loss_of(logits, targets):
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_labels_that_the_model_shifts_again(model, text):
    """Eleven ids and as many labels a row; of these the last ten are targets, and of nine the input is known."""
    ids, labels = text[:, :-1], text[:, 1:]
    sliced = loss_of(logits_of(model, ids)[:, :-1], labels[:, 1:])
    padded = loss_of(logits_of(model, ids), nn.functional.pad(labels, (0, 1), value=-100)[:, 1:])
    for loss in (sliced, padded):
        ((targets, after_next, following),) = seen(loss)
        assert (targets, after_next) == (4 * 9, 4 * 9)
        assert following < 0.1


def test_labels_that_are_shifted_once(model, text):
    by_the_model = loss_of(logits_of(model, text)[:, :-1], text[:, 1:])
    by_the_data = loss_of(logits_of(model, text[:, :-1]), text[:, 1:])
    for loss in (by_the_model, by_the_data):
        ((_, after_next, following),) = seen(loss)
        assert after_next <= 2
        assert following == 1.0


def test_a_second_head_that_looks_further_ahead(model, text):
    ids, labels = text[:, :-1], text[:, 1:]
    logits = logits_of(model, ids)
    both = loss_of(logits, labels) + loss_of(logits[:, :-1], labels[:, 1:])
    ((targets, after_next, following),) = seen(both)
    assert (after_next / targets, following) == (1.0, 1.0)


def test_ignored_targets_do_not_count(model, text):
    ids, labels = text[:, :-1], text[:, 1:].clone()
    labels[:, 5:] = -100
    ((targets, after_next, _),) = seen(loss_of(logits_of(model, ids)[:, :-1], labels[:, 1:]))
    assert (targets, after_next) == (16, 16)


def test_logits_that_start_later_are_not_compared(model, text):
    """The first position is a token that starts the text: the second one predicts the third."""
    targets = nn.functional.pad(text, (0, 1), value=-100)[:, 2:]
    assert seen(loss_of(logits_of(model, text)[:, 1:], targets)) == []


def test_what_is_no_sequence_of_ids_is_not_compared(model, text):
    classes = loss_of(logits_of(model, text).mean(1, keepdim=True), text[:, :1])
    assert seen(classes, torch.zeros((), requires_grad=True) * 2) == []
    recomputed = checkpoint(lambda ids: logits_of(model, ids), text, use_reentrant=False)
    assert seen(loss_of(recomputed[:, :-1], text[:, 1:])) == []  # reading the ids would compute again
    assert seen(loss_of(logits_of(model, text), text), places=Compiled) == []


def test_only_the_first_passes_are_compared(model, text):
    assert len(seen(*[loss_of(logits_of(model, text), text)] * 9)) == 4
