"""Arguments of `kl_div`: real calls, in steps of plain torch."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.divergences import Divergences
from dptune.capture.injected.observe.same_results import SameResults

pytestmark = pytest.mark.filterwarnings("ignore:reduction. .mean.")  # torch warns of its default


class Uncompiled:
    compiled = ()


MODEL = nn.Linear(4, 5)
LOGITS = 3 * torch.randn(6, 5)
P, LOG_P = LOGITS.softmax(1), LOGITS.log_softmax(1)
NORMAL = torch.distributions.Normal(0.0, 0.05)
PADDED = torch.where(torch.arange(6)[:, None] < 3, P, -1.0)


def found(*losses, steps=4):
    """What is found in steps that compute these losses, in turn, of what a layer returns."""
    divergences = Divergences()
    observer = SameResults(Uncompiled(), others=(divergences,))
    observer.begin()
    for step in range(steps):
        outputs = MODEL(torch.randn(6, 4) + 3)
        losses[step % len(losses)](outputs).backward()
        observer.ticked()
    observer.end()
    return divergences.facts()


def half(outputs):
    with torch.autocast("cpu", torch.bfloat16):
        return F.kl_div(MODEL(outputs[:, :4]).softmax(1), P)


@pytest.mark.parametrize(
    ("loss", "applied", "argument"),
    [
        (lambda x: F.kl_div(F.softmax(x / 4, 1), P, reduction="batchmean") * 16, "softmax", "input"),
        (lambda x: F.kl_div(input=x.softmax(1).view(3, 2, 5), target=P.view(3, 2, 5)), "softmax", "input"),
        (lambda x: nn.KLDivLoss(reduction="sum")(x.softmax(1), P), "softmax", "input"),
        (lambda x: nn.KLDivLoss(log_target=True)(x.softmax(1), LOG_P), "softmax", "input"),
        (lambda x: torch.kl_div(x.softmax(1), P, 1), "softmax", "input"),
        (lambda x: F.kl_div(x.sigmoid(), P), "sigmoid", "input"),
        (lambda x: F.kl_div(x.exp() / x.exp().sum(1, keepdim=True), P), "probabilities", "input"),
        (lambda x: F.kl_div(x.log_softmax(1).exp().T, P.T), "probabilities", "input"),
        (half, "softmax", "input"),
        (lambda x: F.kl_div(2 * x, P), "layer", "input"),
        (lambda x: F.kl_div(2 * x / 0.5, LOG_P, log_target=True), "layer", "input"),
        (lambda x: F.kl_div(x.log_softmax(1), LOG_P), "log-probabilities", "target"),
        (lambda x: F.kl_div(x.log_softmax(1), LOGITS), "negative values", "target"),
        (lambda x: F.kl_div(x.log_softmax(1), P, log_target=True), "probabilities", "log target"),
        (lambda x: F.kl_div(P, x.log_softmax(1)), "probabilities", "swapped"),
    ],
)
def test_arguments_of_the_wrong_kind(loss, applied, argument):
    with torch.no_grad():
        MODEL.bias.fill_(9.0)  # outputs of the layer are above 0
    (facts,) = found(loss)
    assert (facts.loss, facts.applied, facts.argument) == ("kl_div", applied, argument)
    assert facts.passes == facts.passes_seen == 3
    assert facts.loss_where.startswith("tests/capture/test_divergences.py:")


def apart(outputs):
    """The divergence in two terms."""
    return F.kl_div(outputs, P, reduction="batchmean") + outputs.logsumexp(1).mean()


def without_gradients(outputs):
    with torch.no_grad():
        F.kl_div(outputs.softmax(1), P)
    return outputs.mean()


def middle(outputs):
    mixed = (outputs.softmax(1) + P) / 2
    return F.kl_div(mixed.log(), P) + F.kl_div(mixed.log(), outputs.softmax(1))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.kl_div((x / 4).log_softmax(1), P, reduction="batchmean"),
        lambda x: F.kl_div((x.softmax(1) + 1e-8).log(), P),
        lambda x: F.kl_div(x.log_softmax(1), LOG_P, log_target=True),
        lambda x: F.kl_div(x.log_softmax(1), F.one_hot(torch.arange(6) % 5, 5).float()),
        lambda x: F.kl_div(x.log_softmax(1), torch.where(torch.arange(6)[:, None] < 3, P, 0.0)),
        lambda x: F.kl_div(x.log_softmax(1), PADDED, reduction="none")[:3].sum(),  # the same number: padding
        lambda x: F.kl_div(x.log_softmax(1)[:, :3], P[:, :3]),  # not all classes
        lambda x: F.kl_div(LOG_P, x.softmax(1)),  # the other way round
        lambda x: F.kl_div(torch.distributions.Categorical(logits=x).logits, P),
        lambda x: F.kl_div(NORMAL.log_prob(x / 100), NORMAL.log_prob(LOGITS / 100), log_target=True),  # densities
        lambda x: F.kl_div(F.logsigmoid(x), P),
        lambda x: F.kl_div(x - x.logsumexp(1, keepdim=True), P),
        lambda x: F.kl_div(x - 30, P),  # computed further
        apart,
        without_gradients,
        middle,
    ],
)
def test_quiet(loss):
    with torch.no_grad():
        MODEL.bias.fill_(9.0)
    assert found(loss) == []


def test_a_line_that_has_it_at_times_is_left_out():
    kinds = itertools.cycle([F.log_softmax, F.softmax])
    assert found(lambda x: F.kl_div(next(kinds)(x, 1), P)) == []


SCRIPT = """
    import torch
    import torch.nn.functional as F

    teacher, student = torch.nn.Linear(8, 5), torch.nn.Linear(8, 5)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for step in range(12):
        x = torch.randn(16, 8)
        known = teacher(x).detach()
        loss = F.kl_div(F.softmax(student(x) / 4, 1), F.softmax(known / 4, 1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WINDOWS = ("--warmup", "5", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_line_of_the_loss(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().probability_losses
    assert (facts.loss, facts.applied, facts.loss_where) == ("kl_div", "softmax", "train.py:10")
    assert facts.passes == facts.passes_seen > 1
