"""Softmax over another dimension than that of its use: real graphs of losses and attention."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.softmax_dimensions import SoftmaxDimensions

from .graph_passes import Places, facts_of

ROWS, HEADS, LENGTH, KEYS, WIDTH, CLASSES = 6, 2, 7, 9, 4, 5


def found(loss_of, passes=3):
    """What passes of this loss show."""
    return facts_of(SoftmaxDimensions(Places()), lambda: loss_of(Parts()), passes)


class Parts(nn.Module):
    """What the losses below are computed of: `outputs` of a layer, of any shape; queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.layer, self.project, self.embed = nn.Linear(8, 8), nn.Linear(8, 3 * WIDTH), nn.Parameter(torch.ones(3, 8))

    def outputs(self, *shape):
        return (
            self.layer(torch.randn(torch.Size(shape).numel() // 8 + 1, 8))
            .flatten()[: torch.Size(shape).numel()]
            .view(shape)
        )

    def heads(self, *leading, queries=LENGTH, keys=KEYS):
        """(..., queries, width), and twice (..., keys, width)"""
        return tuple(self.outputs(*leading, length, WIDTH) for length in (queries, keys, keys))


def targets(*shape):
    return torch.randint(0, CLASSES, shape)


def classified(dim, *shape):
    """The negative log-likelihood of log_softmax over this dimension."""
    return lambda parts: functional.nll_loss(parts.outputs(*shape).log_softmax(dim), targets(shape[0], *shape[2:]))


def by_token(dim):
    def loss(parts):
        given = parts.outputs(ROWS, LENGTH, CLASSES).log_softmax(dim)
        return functional.nll_loss(given.view(-1, CLASSES), targets(ROWS * LENGTH))

    return loss


def transposed(dim):
    def loss(parts):
        given = parts.outputs(ROWS, LENGTH, CLASSES).log_softmax(dim)
        return functional.nll_loss(given.transpose(1, 2), targets(ROWS, LENGTH))

    return loss


def written_log(dim):
    """With a constant that keeps the logarithm finite."""
    return lambda parts: functional.nll_loss((parts.outputs(ROWS, CLASSES).softmax(dim) + 1e-8).log(), targets(ROWS))


def crossed(dim):
    return lambda parts: functional.cross_entropy(parts.outputs(ROWS, CLASSES).softmax(dim), targets(ROWS))


def aligned(dim):
    """By time, row and class, as ctc_loss takes them."""
    return lambda parts: functional.ctc_loss(
        parts.outputs(LENGTH, ROWS, CLASSES).log_softmax(dim),
        torch.ones(ROWS, 2, dtype=torch.long),
        torch.full((ROWS,), LENGTH),
        torch.full((ROWS,), 2),
    )


LOSSES = {
    "classes": (lambda dim: classified(dim, ROWS, CLASSES), 0, 1),
    "pixels": (lambda dim: classified(dim, ROWS, CLASSES, 3, 2), 3, 1),
    "pixels, over rows": (lambda dim: classified(dim, ROWS, CLASSES, 3, 2), 0, 1),
    "positions of tokens": (by_token, 1, 2),
    "rows of tokens": (by_token, 0, 2),
    "classes after positions": (transposed, 1, 2),
    "a logarithm of its own": (written_log, 0, 1),
    "a cross entropy": (crossed, 0, 1),
    "ctc": (aligned, 1, 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_takes_classes_from_another_dimension(name):
    loss_of, wrong, right = LOSSES[name]
    (each,) = found(loss_of(wrong))
    assert (each.dim, each.expected, each.count, each.passes, each.passes_seen) == (wrong, right, 1, 3, 3)
    assert each.used_as == ("cross_entropy" if name == "a cross entropy" else "loss")
    assert each.function == ("softmax" if name in ("a cross entropy", "a logarithm of its own") else "log_softmax")
    assert each.where.startswith("tests/capture/test_softmax_dimensions.py:")
    assert each.use_where.startswith("tests/capture/test_softmax_dimensions.py:")
    assert found(loss_of(right)) == []
    assert found(loss_of(right - rank_of(name))) == []


def rank_of(name):
    return {"classes": 2, "a logarithm of its own": 2, "a cross entropy": 2}.get(name, 4 if "pixels" in name else 3)


def attended(dim, leading=(ROWS, HEADS), of_scores=lambda scores: scores, of_weights=lambda weights: weights):
    """Operator by operator."""

    def loss(parts):
        queries, keys, values = parts.heads(*leading)
        return (of_weights(of_scores(queries @ keys.mT / 2).softmax(dim)) @ values).square().sum()

    return loss


def masked(scores):
    return scores.masked_fill(torch.rand(scores.shape[-2:]) < 0.2, -1e9)


def dropped(weights):
    return functional.dropout(weights, 0.1)


def by_einsum(dim):
    def loss(parts):
        queries, keys, values = parts.heads(ROWS, HEADS)
        queries, keys, values = queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim), values).square().sum()

    return loss


def values_first(dim):
    """As in generators of pictures: values by channel and place, times the transposed weights."""

    def loss(parts):
        queries, keys, values = parts.heads(ROWS)
        return torch.bmm(values.mT, torch.bmm(queries, keys.mT).softmax(dim).permute(0, 2, 1)).square().sum()

    return loss


def halved(dim):
    def loss(parts):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attended(dim)(parts)

    return loss


ATTENTION = {
    "over queries": (attended, 2, 3),
    "over heads": (attended, 1, 3),
    "over rows": (lambda dim: attended(dim, (ROWS,)), 0, 2),
    "masked": (lambda dim: attended(dim, of_scores=masked), 1, 3),
    "dropped out": (lambda dim: attended(dim, of_weights=dropped), 2, 3),
    "hidden afterwards": (lambda dim: attended(dim, of_weights=lambda each: each.masked_fill(each > 0.5, 0.0)), 2, 3),
    "einsum": (by_einsum, 2, 3),
    "values first": (values_first, 1, 2),
    "autocast": (halved, 2, 3),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_weights_that_are_summed_along_another_dimension(name):
    loss_of, wrong, right = ATTENTION[name]
    (each,) = found(loss_of(wrong))
    assert (each.used_as, each.function, each.dim, each.expected) == ("weights", "softmax", wrong, right)
    assert (each.count, each.passes) == (1, 3)
    assert each.where.startswith("tests/capture/test_softmax_dimensions.py:")
    assert found(loss_of(right)) == []
    assert found(loss_of(-1)) == []


def test_a_dimension_that_torch_chooses():
    """Of three dimensions the first, of which it warns."""

    def loss(parts):
        queries, keys, values = parts.heads(ROWS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights = functional.softmax(queries @ keys.mT)
        return (weights @ values).square().sum()

    (each,) = found(loss)
    assert (each.dim, each.expected, each.sizes) == (0, 2, [ROWS, LENGTH, KEYS])


def test_layers_are_counted_and_named_once():
    def loss(parts):
        return attended(2)(parts) + attended(2)(parts) + attended(1)(parts) + attended(3)(parts)

    by_dim = {each.dim: each.count for each in found(loss)}
    assert by_dim == {2: 2, 1: 1}


def together(parts, renormalized):
    """Slots compete for inputs; each then divides its weights by their sum."""
    queries, keys, values = parts.heads(ROWS)
    weights = (queries @ keys.mT).softmax(1)
    if renormalized == "divided":
        weights = (weights + 1e-8) / (weights + 1e-8).sum(-1, keepdim=True)
    if renormalized == "multiplied":
        weights = weights * weights.sum(-1, keepdim=True).reciprocal()
    return weights @ values


def pooled(parts):
    """Nodes are assigned to clusters by a layer."""
    nodes = parts.outputs(ROWS, LENGTH, 8)
    assigned = parts.project(nodes).softmax(-1)
    return assigned.mT @ nodes


def by_prototype(parts):
    """Assigned by learned vectors: their product is a layer, too."""
    nodes = parts.outputs(ROWS, LENGTH, 8)
    return (nodes @ parts.embed.T).softmax(-1).mT @ nodes


def both_ways(parts):
    """Co-attention of a text and a question."""
    text, question, _ = parts.heads(ROWS)
    scores = text @ question.mT
    to_question, to_text = scores.softmax(2), scores.softmax(1)
    return to_question @ to_text.mT @ text


def averaged(parts):
    """Soft k-means: each centre is the mean of the points, which the sum of their weights divides in the end."""
    points, centres, _ = parts.heads(ROWS)
    weights = (points @ centres.mT).softmax(-1)
    return (weights.mT @ points) / weights.sum(1).unsqueeze(-1)


def described(parts):
    """Descriptors of a picture, behind attention, are assigned to clusters by a convolution."""
    queries, keys, values = parts.heads(ROWS)
    descriptors = (queries @ keys.mT).softmax(-1) @ values
    assigned = nn.Conv1d(WIDTH, 3, 1)(descriptors.mT).softmax(1)
    return assigned @ descriptors


def efficient(parts):
    """Linear attention: keys over positions, queries over features."""
    queries, keys, values = parts.heads(ROWS)
    return queries.softmax(-1) @ (keys.softmax(-2).mT @ values)


def routed(parts):
    """A mixture of experts."""
    tokens, weights = parts.outputs(ROWS, 3, WIDTH), parts.outputs(ROWS, 1, 3).softmax(-1)
    return weights @ tokens


def of_heads(parts):
    """torch's own module, with weights."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    rows = parts.outputs(ROWS, LENGTH, 8)
    return attention(rows, rows, rows, need_weights=True)[0]


def over_both(parts):
    """Matches of two pictures: the product of both softmaxes."""
    queries, keys, values = parts.heads(ROWS)
    scores = queries @ keys.mT
    return (scores.softmax(1) * scores.softmax(2)) @ values


def gated(parts):
    """A trained factor makes other weights of them."""
    queries, keys, values = parts.heads(ROWS)
    return ((queries @ keys.mT).softmax(1) * parts.outputs(ROWS, LENGTH, 1).sigmoid()) @ values


def of_one_key(parts):
    """One dimension is all there is."""
    queries, keys, values = parts.heads(ROWS, keys=1)
    return (queries @ keys.mT).softmax(1) @ values


def unread(parts):
    return parts.outputs(ROWS, CLASSES).softmax(0)


def contrasted(parts):
    """Both ways of a matrix of similarities."""
    first, second, _ = parts.heads(queries=ROWS, keys=ROWS)
    similar, own = first @ second.T, torch.arange(ROWS)
    return functional.cross_entropy(similar, own) + functional.cross_entropy(similar.T, own)


def hidden(parts, reentrant):
    queries, keys, values = parts.heads(ROWS)
    return checkpoint(lambda q, k, v: (q @ k.mT).softmax(1) @ v, queries, keys, values, use_reentrant=reentrant)


def merged(parts):
    """A view in which the dimension is one with others."""
    given = parts.outputs(ROWS, LENGTH, CLASSES).softmax(1).log()
    return functional.nll_loss(given.reshape(LENGTH, -1), targets(LENGTH))


HEALTHY = {
    "slots": lambda parts: together(parts, "divided"),
    "slots, multiplied": lambda parts: together(parts, "multiplied"),
    **{each.__name__: each for each in (pooled, by_prototype, averaged, described, both_ways, efficient, routed)},
    **{each.__name__: each for each in (of_heads, over_both, gated, of_one_key, unread, contrasted, merged)},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_it_is_quiet(name):
    assert found(lambda parts: HEALTHY[name](parts).square().sum()) == []


def test_slots_that_divide_by_nothing_are_named():
    """So that the two above are quiet for that division alone."""
    (each,) = found(lambda parts: together(parts, "").square().sum())
    assert (each.dim, each.expected) == (1, 2)


@pytest.mark.parametrize(("reentrant", "count"), [(False, 1), (True, 0)])
def test_of_checkpointed_parts_a_graph_may_be_there(reentrant, count):
    assert len(found(lambda parts: hidden(parts, reentrant).square().sum())) == count


def test_scripts_that_compile_are_left_alone():
    observer = SoftmaxDimensions(type("Compiling", (), {"compiled": ("model",)})())
    observer.begin()
    observer.before_pass(classified(0, ROWS, CLASSES)(Parts()))
    assert observer.facts() == []


def test_few_passes_are_read():
    (each,) = found(classified(0, ROWS, CLASSES), passes=9)
    assert (each.passes, each.passes_seen) == (6, 6)
