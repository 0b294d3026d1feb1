"""Views where a transpose is meant, and views that are right: real operators, in steps of plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as scripts have it
from torch import nn

from dptune.capture.injected.observe.misplaced_views import MisplacedViews
from dptune.capture.injected.observe.same_results import SameResults


class Uncompiled:
    compiled = ()


B, T, C, H = 6, 30, 28, 4


class Layers(nn.Module):
    """What the models below are made of; B texts of T times and C channels go in."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(C, C), nn.Linear(C, C)
        self.over_time, self.over_channels = nn.Conv1d(C, 8, 3), nn.Conv1d(T, 8, 3)
        self.pixels, self.maps = nn.Conv2d(3, 10, 3), nn.Conv2d(10, 4, 3)
        self.of_pixels = nn.Linear(10, 8)
        self.rnn = nn.GRU(C, 16)
        self.both = nn.GRU(C, 16, bidirectional=True, batch_first=True)
        self.last = nn.Linear(32, 2)
        self.table = nn.Parameter(torch.randn(T, C))
        self.wide, self.classify = nn.Linear(C, 64), nn.Linear(64, 2)


def found(forward, steps=4):
    """What is found in steps that train by the sum of what a function makes of the layers and a batch."""
    torch.manual_seed(0)
    layers, views = Layers(), MisplacedViews()
    observer = SameResults(Uncompiled(), others=(views,))
    observer.begin()
    for _ in range(steps):
        result = forward(layers, torch.randn(B, T, C))
        if result.requires_grad:
            result.square().mean().backward()
        observer.ticked()
    observer.end()
    return views.facts()


def attended(layers, x, heads_first, joined):
    q = k = v = heads_first(layers.enter(x))
    y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
    return layers.leave(joined(y))


def split(x):
    return x.view(B, -1, H, C // H).transpose(1, 2)


def viewed_heads(x):
    return x.view(B, H, T, C // H)


def joined(y):
    return y.transpose(1, 2).reshape(B, T, C)


FAULTS = {
    "activations before a convolution": (
        lambda layers, x: layers.over_time(layers.enter(x).view(B, C, T)),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "torch.reshape": (
        lambda layers, x: layers.over_time(torch.reshape(layers.enter(x), (B, C, T))),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "as another tensor": (
        lambda layers, x: layers.over_time(layers.enter(x).view_as(x.mT)),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "a batch": (
        lambda layers, x: layers.over_time(x.view(B, C, T)),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "after other operators": (
        lambda layers, x: layers.over_time((F.dropout(layers.enter(x)) + x).reshape(B, C, T).relu() * 2),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "heads": (
        lambda layers, x: attended(layers, x, viewed_heads, joined),
        ([B, T, C], [B, H, T, 7], ".reshape(6, 30, 4, 7).transpose(1, 2)"),
    ),
    "heads in two views": (
        lambda layers, x: attended(layers, x, lambda y: y.view(B, T, H, -1).view(B, H, T, -1), joined),
        ([B, T, C], [B, H, T, 7], ".reshape(6, 30, 4, 7).transpose(1, 2)"),
    ),
    "heads joined": (
        lambda layers, x: attended(layers, x, split, lambda y: y.reshape(B, T, C)),
        ([B, H, T, 7], [B, T, C], ".transpose(1, 2).reshape(6, 30, 28)"),
    ),
    "pixels": (
        lambda layers, x: layers.of_pixels(layers.pixels(x[:, :27, :27].reshape(B, 3, 9, 27)).view(B, -1, 10)),
        ([B, 10, 7, 25], [B, 175, 10], ".permute(0, 2, 3, 1).reshape(6, 175, 10)"),
    ),
    "pixels of a batch": (
        lambda layers, x: layers.pixels(x[:, :29, :3].reshape(B, 3, 29, 1).expand(B, 3, 29, 5)),
        ([B, 29, 3], [B, 3, 29, 1], ".transpose(1, 2).reshape(6, 3, 29, 1)"),
    ),
    "times before texts": (
        lambda layers, x: layers.rnn(layers.rnn(x.mT.permute(2, 0, 1))[0].view(B, T, 16).repeat(1, 1, 2)[..., :C])[0],
        ([T, B, 16], [B, T, 16], ".transpose(0, 1)"),
    ),
    "the last states of two directions": (
        lambda layers, x: layers.last(layers.both(x)[1].view(B, 32)),
        ([2, B, 16], [B, 32], ".transpose(0, 1).reshape(6, 32)"),
    ),
    "logits": (
        lambda layers, x: F.cross_entropy(layers.enter(x).view(B, C, T), torch.zeros(B, T, dtype=torch.long)),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "a prediction": (
        lambda layers, x: F.mse_loss(layers.enter(x).view(B, C, T), x.mT),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
    "a mean over times": (
        lambda layers, x: layers.leave(layers.enter(x).view(B, C, T).mean(2)),
        ([B, T, C], [B, C, T], ".transpose(1, 2)"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_changes_places(name):
    forward, expected = FAULTS[name]
    (facts,) = found(forward)
    assert (facts.given, facts.made, facts.instead) == expected
    assert (facts.steps, facts.steps_seen) == (3, 3)
    assert facts.where.startswith("tests/capture/test_misplaced_views.py:")


def test_the_function_the_operator_and_whether_sizes_are_certain():
    (heads,) = found(lambda layers, x: attended(layers, x, viewed_heads, joined))
    (even,) = found(lambda layers, x: layers.wide(x)[:, :16].view(B, 64, 16).softmax(1))
    assert (heads.function, heads.operator, heads.certain) == ("viewed_heads", "view", True)
    assert (even.given, even.made, even.certain) == ([B, 16, 64], [B, 64, 16], False)


def skewed(scores):
    """Scores of relative positions, as in Transformer-XL: padded, viewed and cut."""
    rows, columns = scores.shape[-2:]
    padded = torch.cat([torch.zeros(B, rows, 1), scores], -1).view(B, columns + 1, rows)
    return padded[:, 1:].view(B, rows, columns)


def skewed_once(scores):
    return F.pad(scores, (1, 0)).view(B, C + 1, T)[:, 1:]


def skewed_and_cut(scores):
    return torch.cat([torch.zeros(B, T, 1), scores], -1).view(B, C + 1, T)[:, 1:]


def shuffled(x):
    """Of torchvision, with groups of channels."""
    return x.view(B, 2, C // 2, T).transpose(1, 2).contiguous().view(B, C, T)


def grouped(layers, x):
    """Groups of channels, as many as pixels in a row."""
    maps = layers.wide(x)[:, :8].transpose(1, 2).reshape(B, 64, 1, 8).repeat(1, 1, 8, 1)
    return F.layer_norm(maps.view(B, 8, -1), [512]).view(B, 64, 8, 8)


def regrouped(layers, x):
    """Texts and heads in a single dimension, as in fairseq; as many texts as channels of a head."""
    q = layers.wide(torch.cat([x, x, x])[:16]).transpose(0, 1).contiguous().view(T, 16 * 4, 16).transpose(0, 1)
    y = (q @ q.mT).softmax(-1) @ q
    return layers.classify(y.transpose(0, 1).contiguous().view(T, 16, 64))


def undone(layers, x):
    y = layers.enter(x)
    return layers.leave(y.view(B, C, T).relu().view(B, T, C))


def undone_after_rows(layers, x):
    y = layers.enter(x[:, :29]).view(29, B, C)
    return layers.leave(y).view(B, 29, C).softmax(1)


def selected(layers, x):
    """Rows of all texts, which are put in another order before they are viewed."""
    order = torch.arange(B * 29).view(B, 29).t().flatten()
    rows = layers.enter(x[:, :29]).flatten(0, 1)
    return layers.rnn(torch.index_select(rows, 0, order).view(29, B, C))[0]


def in_evaluation(layers, x):
    with torch.no_grad():
        layers.over_time(layers.enter(x).view(B, C, T))
    return layers.enter(x)


HEALTHY = {
    "a transpose": lambda layers, x: layers.over_time(layers.enter(x).transpose(1, 2)),
    "heads": lambda layers, x: attended(layers, x, split, joined),
    "a view that is undone": undone,
    "a view that is undone after rows are computed": undone_after_rows,
    "relative positions": lambda layers, x: skewed(layers.enter(x)).softmax(-1),
    "relative positions, cut once": lambda layers, x: skewed_once(layers.enter(x)).softmax(-1),
    "relative positions, cut alone": lambda layers, x: skewed_and_cut(layers.enter(x)).softmax(-1),
    "relative positions, padded alone": lambda layers, x: F.pad(layers.enter(x), (1, 0)).view(B, C + 1, T).softmax(-1),
    "channels shuffled": lambda layers, x: layers.over_time(shuffled(layers.enter(x).mT)),
    "groups of channels": grouped,
    "frames stacked": lambda layers, x: layers.wide(x)[:, :16].reshape(B, 8, 128).softmax(-1),
    "texts and heads in one": regrouped,
    "rows in another order": selected,
    "evaluation": in_evaluation,
    "a weight": lambda layers, x: F.linear(x.mT, (2 * layers.table).view(C, T)),
    "a batch that is regrouped": lambda layers, x: layers.over_channels(x.mT.permute(2, 0, 1).reshape(B, T, C)),
    "a square": lambda layers, x: layers.enter(x)[:, :28].reshape(B, 28, 28).softmax(1),
    "rows for cross entropy": lambda layers, x: F.cross_entropy(
        layers.rnn(x.transpose(0, 1))[0].reshape(-1, 16), torch.zeros(B * T, dtype=torch.long)
    ),
    "both sides of a comparison": lambda layers, x: F.mse_loss(layers.enter(x).view(B, C, T), x.view(B, C, T)),
    "nothing computes along it": lambda layers, x: layers.enter(x).view(B, C, T).relu(),
    "windows": lambda layers, x: layers.enter(x).view(B, 5, 6, C).view(B * 5, 6, C).softmax(1),
    "pixels shuffled": lambda layers, x: (
        layers.enter(x).view(B, T, 7, 2, 2).permute(0, 1, 3, 2, 4).reshape(B, T, 14, 2)
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_right(name):
    assert found(HEALTHY[name]) == []


def test_a_single_step_is_not_enough():
    once = iter([False, True, *[False] * 9])

    def forward(layers, x):
        y = layers.enter(x)
        return layers.over_time(y.view(B, C, T) if next(once) else y.mT)

    assert found(forward) == []
