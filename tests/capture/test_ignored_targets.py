"""Rows of logits without a label: which losses are found in a graph, and what of their targets is counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.ignored_targets import IgnoredTargets, after_last
from dptune.capture.injected.observe.loss_graph import heads

SCRIPT = """
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(300, 16), nn.Linear(16, 300)

        def forward(self, ids, labels):
            logits = self.head(self.words(ids))
            return nn.CrossEntropyLoss()(logits.view(-1, 300), labels.view(-1))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(0, 300, (4, 20))
    labels = torch.where(torch.arange(20) % 5 == 4, ids, -100)
    for step in range(8):
        model(ids, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WINDOWS = ("--warmup", "3", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")
WORDS = 50


@pytest.mark.records
def test_a_recording_has_the_rows_and_labels_of_its_warm_up_steps_and_the_line_of_the_loss(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().ignored_targets
    assert (facts.classes, facts.where) == (300, "train.py:13")
    assert set(zip(facts.rows, facts.labelled, facts.padding, strict=True)) == {(80, 16, 0)}
    assert facts.unread_share == facts.unread_beside_padding == pytest.approx(0.8)


class Places:
    """Of a script that compiles nothing."""

    compiled = ()


def seen(*passes):
    """What is seen of backward passes from these losses."""
    watched = IgnoredTargets(Places())
    watched.begin()
    try:
        for loss in passes:
            watched.before_pass(loss)
    finally:
        watched.end()
    return [(facts.classes, facts.rows, facts.labelled, facts.padding) for facts in watched.facts()]


@pytest.fixture
def head():
    torch.manual_seed(0)
    return nn.Linear(8, WORDS)


@pytest.fixture
def hidden():
    return torch.randn(2, 10, 8, requires_grad=True)


@pytest.fixture
def labels():
    """Of ten positions the first six have none in the first sequence, and the last three in the second one."""
    labels = torch.randint(0, WORDS, (2, 10))
    labels[0, :6] = -100
    labels[1, 7:] = -100
    return labels


EXPECTED = [(WORDS, [20], [11], [3])]


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, labels: functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        lambda logits, labels: nn.CrossEntropyLoss()(logits.transpose(1, 2), labels),
        lambda logits, labels: functional.cross_entropy(logits.view(-1, WORDS), labels.view(-1), label_smoothing=0.1),
        lambda logits, labels: functional.cross_entropy(logits.double().reshape(-1, WORDS) / 2, labels.reshape(-1)),
        lambda logits, labels: functional.nll_loss(functional.log_softmax(logits, -1).flatten(0, 1), labels.flatten()),
        lambda logits, labels: functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / 11,
        lambda logits, labels: functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten().clamp(min=-1), ignore_index=-1, weight=torch.ones(WORDS)
        ),
    ],
)
def test_rows_labels_and_padding_by_hand(loss, head, hidden, labels):
    assert seen(loss(head(hidden), labels)) == EXPECTED
    assert seen(3 * loss(head(hidden), labels) + hidden.square().sum()) == EXPECTED


def test_projections_by_a_product_and_by_tied_weights(hidden, labels):
    weight = torch.randn(WORDS, 8, requires_grad=True)
    for logits in (hidden @ weight.T, functional.linear(hidden, weight), torch.einsum("btd,vd->btv", hidden, weight)):
        assert seen(functional.cross_entropy(logits.view(-1, WORDS), labels.view(-1))) == EXPECTED


def test_shifted_labels_as_libraries_do(head, hidden, labels):
    """The last position has no next token: its row is computed and dropped."""
    logits = head(hidden)[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous()
    assert seen(functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1))) == [(WORDS, [20], [10], [3])]


def test_positions_that_are_picked_after_the_projection(head, hidden, labels):
    picked = head(hidden)[labels != -100]
    assert seen(functional.cross_entropy(picked, labels[labels != -100])) == [(WORDS, [20], [11], [0])]
    assert seen(functional.cross_entropy(head(hidden)[:, -1], labels[:, -4])) == [(WORDS, [20], [2], [0])]


def test_positions_that_are_picked_before_the_projection(head, hidden, labels):
    kept = labels != -100
    assert seen(functional.cross_entropy(head(hidden[kept]), labels[kept])) == [(WORDS, [11], [11], [0])]


@pytest.mark.parametrize("flat", [True, False])
def test_chunks_add_up(flat, head, hidden, labels):
    """In chunks of a flat list of positions, or of columns, padding is what it is in whole sequences."""
    if flat:
        parts = zip(hidden.flatten(0, 1).chunk(5), labels.flatten().chunk(5), strict=True)
    else:
        parts = zip(hidden.split(4, 1), labels.split(4, 1), strict=True)
    losses = [functional.cross_entropy(head(h).flatten(0, -2), y.reshape(-1), reduction="sum") for h, y in parts]
    assert seen(sum(losses)) == EXPECTED


def test_passes_of_a_step_are_apart(head, hidden, labels):
    def loss():
        return functional.cross_entropy(head(hidden).flatten(0, 1), labels.flatten())

    assert seen(loss(), loss()) == [(WORDS, [20, 20], [11, 11], [3, 3])]


def test_logits_that_something_else_reads_are_left_out(head, hidden, labels):
    logits = head(hidden)
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert seen(loss + 1e-4 * logits.logsumexp(-1).square().mean()) == []
    log_probs = functional.log_softmax(head(hidden), -1).flatten(0, 1)
    teacher = torch.full_like(log_probs, 1 / WORDS)
    assert (
        seen(
            functional.nll_loss(log_probs, labels.flatten())
            + functional.kl_div(log_probs, teacher, reduction="batchmean")
        )
        == []
    )


def test_two_losses_of_the_same_logits_share_their_rows(head, hidden, labels):
    logits = head(hidden)
    first, second = labels[:, :5], labels[:, 5:]
    loss = functional.cross_entropy(logits[:, :5].flatten(0, 1), first.flatten())
    loss = loss + functional.cross_entropy(logits[:, 5:].flatten(0, 1), second.flatten())
    assert [(rows, labelled) for _, rows, labelled, _ in seen(loss)] == [([20], [11])]


def test_losses_without_a_projection_or_a_graph_are_none(hidden, labels):
    conv = nn.Conv1d(8, WORDS, 1)(hidden.transpose(1, 2))
    assert seen(functional.cross_entropy(conv, labels)) == []
    assert seen(hidden.sum(), hidden.detach().sum(), None, "no tensor") == []


@pytest.mark.parametrize(
    "masked",
    [
        lambda losses, mask: (losses * mask.flatten()).sum() / mask.sum(),
        lambda losses, mask: (mask.float() * losses.view(2, 10)).sum(1).mean(),
        lambda losses, mask: losses[mask.flatten()].mean(),
        lambda losses, mask: losses.view(2, 10)[mask].mean(),
        lambda losses, mask: losses.view(2, 10).masked_select(mask).sum(),
        lambda losses, mask: losses.view(2, 10).masked_fill(~mask, 0).sum(),
        lambda losses, mask: torch.where(mask.flatten(), losses, 0).sum(),
    ],
)
def test_losses_that_a_mask_drops(masked, head, hidden, labels):
    """As of the labels by hand, without an ignored one."""
    mask = labels != -100
    losses = functional.cross_entropy(head(hidden).flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
    assert seen(masked(losses, mask)) == EXPECTED


@pytest.mark.parametrize(
    "chosen",
    [
        lambda losses: (losses * (losses > losses.median())).sum(),
        lambda losses: losses[losses < losses.median()].mean(),
        lambda losses: losses.topk(5).values.mean(),
        lambda losses: losses.clamp(max=2).mean(),
    ],
)
def test_losses_that_are_chosen_by_their_size_count(chosen, head, hidden):
    labels = torch.randint(0, WORDS, (20,))
    losses = functional.cross_entropy(head(hidden).flatten(0, 1), labels, reduction="none")
    assert seen(chosen(losses)) == [(WORDS, [20], [20], [0])]


def test_targets_under_a_hook_of_the_script_are_not_read(head, hidden, labels):
    """Reading what a checkpoint saves would compute it again."""
    calls = []

    def loss(states):
        calls.append(1)
        return functional.cross_entropy(head(states).flatten(0, 1), labels.flatten())

    total = checkpoint(loss, hidden, use_reentrant=False)
    assert seen(total) == []
    assert len(calls) == 1
    total.backward()
    assert len(calls) == 2


def test_training_is_the_same_with_and_without_the_observer(head, hidden, labels):
    def gradients(watch):
        loss = functional.cross_entropy(head(hidden).flatten(0, 1), labels.flatten())
        if watch:
            assert seen(loss) == EXPECTED
        return torch.autograd.grad(loss, [hidden, *head.parameters()])

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


def test_functions_are_put_back_and_compiled_scripts_left_alone():
    before = functional.cross_entropy, functional.nll_loss
    watched = IgnoredTargets(Places())
    watched.begin()
    assert functional.cross_entropy is not before[0]
    watched.end()
    assert (functional.cross_entropy, functional.nll_loss) == before
    compiled = Places()
    compiled.compiled = ["train.py:3"]
    watched = IgnoredTargets(compiled)
    watched.begin()
    assert (functional.cross_entropy, functional.nll_loss) == before


def test_sequences_without_a_label_are_padding(head, hidden, labels):
    labels[0] = -100
    (found,) = heads([functional.cross_entropy(head(hidden).flatten(0, 1), labels.flatten()).grad_fn])
    assert int(after_last(found.losses).sum()) == 10 + 3
