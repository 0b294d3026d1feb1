"""Self-attention that sees the tokens to predict: real graphs of small language models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.causal_masks import CausalMasks

from .graph_passes import Places, facts_of

WORDS, ROWS, LENGTH, WIDTH = 300, 6, 12, 8
LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
ADDED = torch.zeros(LENGTH, LENGTH).masked_fill(LATER, float("-inf"))
DISTANCES = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]


def found(loss_of, passes=3):
    """What passes of this loss show."""
    return facts_of(CausalMasks(Places()), loss_of, passes)


def text():
    return torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))


class Parts(nn.Module):
    """Layers of all models below."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        self.norm, self.project, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.encoder = encoder(batch_first=True)
        self.by_position = encoder(batch_first=False)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def embed(self, ids):
        return self.words(ids) + self.places.weight[: ids.shape[1]]


def encoder(batch_first):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.1, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    return Parts()


def predicted(logits, targets, **options):
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)


def layer(attend, layers=1):
    """A language model with this attention over queries, keys and values of (rows, heads, positions, width)."""

    def model(parts, ids):
        hidden = parts.embed(ids)
        for _ in range(layers):
            heads = parts.project(parts.norm(hidden)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            hidden = hidden + attend(*heads).transpose(1, 2).flatten(2)
        return parts.head(hidden)

    return model


def fused(**options):
    return layer(lambda q, k, v: scaled_dot_product_attention(q, k, v, **options), layers=2)


def written(of_scores=lambda scores: scores, of_weights=lambda weights: weights):
    """Operator by operator."""
    return layer(lambda q, k, v: of_weights(of_scores(q @ k.mT / 2).softmax(-1)) @ v)


def multihead(**options):
    def model(parts, ids):
        hidden = parts.embed(ids)
        return parts.head(hidden + parts.attention(hidden, hidden, hidden, **options)[0])

    return model


def encoded(**options):
    return lambda parts, ids: parts.head(parts.encoder(parts.embed(ids), **options))


def by_position(**options):
    """Positions first, as torch's layers take them by default; the loss takes rows first."""
    return lambda parts, ids: parts.head(parts.by_position(parts.embed(ids).transpose(0, 1), **options)).transpose(0, 1)


def additive(q, k, v):
    """Each query and key of one head, from two projections of their own that einsum computes."""
    return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(3), v)


@pytest.mark.parametrize(
    "model",
    [
        fused(),
        fused(dropout_p=0.1),
        fused(attn_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool)),
        fused(attn_mask=torch.zeros(ROWS, 1, LENGTH, LENGTH)),
        fused(attn_mask=~LATER.mT | torch.eye(LENGTH, dtype=torch.bool)),  # the earlier ones are hidden
        fused(attn_mask=-0.5 * DISTANCES.abs()),
        written(),
        written(lambda scores: scores * ~LATER),  # a score of 0 is no weight of 0
        written(lambda scores: scores + 0.1, nn.Dropout(0.3)),
        layer(additive),
        multihead(),
        multihead(need_weights=False),
        multihead(key_padding_mask=torch.zeros(ROWS, LENGTH, dtype=torch.bool)),
        encoded(),
        by_position(),
    ],
)
def test_attention_that_sees_the_answers(parts, model):
    ids = text()
    (facts,) = found(lambda: predicted(model(parts, ids[:, :-1]), ids[:, 1:]))
    assert (facts.passes, facts.passes_seen, facts.positions, facts.seen_share) == (3, 3, LENGTH, 1.0)
    assert facts.layers == (2 if facts.layers > 1 else 1)
    assert facts.targets >= ROWS * (LENGTH - 1) - 4
    assert 0.3 < facts.later_share < 1
    assert facts.where.startswith("tests/capture/test_causal_masks.py:")


@pytest.mark.parametrize(
    "model",
    [
        fused(is_causal=True),
        fused(is_causal=True, dropout_p=0.1),
        fused(attn_mask=~LATER),
        fused(attn_mask=ADDED),
        fused(attn_mask=ADDED.clamp(min=-1e9) - 0.5 * DISTANCES.abs()),
        written(lambda scores: scores.masked_fill(LATER, -1e4)),
        written(lambda scores: scores + ADDED, nn.Dropout(0.3)),
        written(of_weights=torch.tril),
        written(of_weights=lambda weights: weights * ~LATER),
        written(of_weights=lambda weights: weights.masked_fill(LATER, 0.0)),
        multihead(attn_mask=LATER),
        multihead(attn_mask=ADDED, need_weights=False),
        encoded(mask=nn.Transformer.generate_square_subsequent_mask(LENGTH)),
        by_position(mask=ADDED),
    ],
)
def test_causal_attention(parts, model):
    ids = text()
    assert found(lambda: predicted(model(parts, ids[:, :-1]), ids[:, 1:])) == []


def shifted_by_the_loss(parts, ids):
    return predicted(fused()(parts, ids[:, :-1])[:, :-1], ids[:, 1:-1])


def padded_and_smoothed(parts, ids):
    targets = pad(ids[:, 1:-1], (0, 1), value=-100)
    return predicted(encoded()(parts, ids[:, :-1]), targets, label_smoothing=0.1)


def embedded_whole(parts, ids):
    """The last position is cut off after the embedding."""
    hidden = parts.embed(ids)[:, :-1]
    return predicted(parts.head(parts.encoder(hidden)), ids[:, 1:])


def positions_first(parts, ids):
    """Ids and targets are by position first, too."""
    ids = ids.mT.contiguous()
    hidden = parts.words(ids[:-1]) + parts.places.weight[:LENGTH, None]
    return predicted(parts.head(parts.by_position(hidden)), ids[1:])


@pytest.mark.parametrize("loss", [shifted_by_the_loss, padded_and_smoothed, embedded_whole, positions_first])
def test_other_forms_of_the_same_targets(parts, loss):
    ids = text()
    (facts,) = found(lambda: loss(parts, ids))
    assert (facts.passes, facts.layers, facts.seen_share) == (3, 2, 1.0)


def masked_words(parts, ids):
    hidden = torch.rand(ids.shape) < 0.3
    return predicted(encoded()(parts, ids.masked_fill(hidden, 0)[:, :LENGTH]), ids[:, :LENGTH])


def classes(parts, ids):
    return cross_entropy(encoded()(parts, ids[:, :-1]).mean(1), ids[:, 0])


def other_targets(parts, ids):
    return predicted(encoded()(parts, ids[:, :-1]), ids[:, 1:].flip(1))


def translation(parts, ids):
    """An encoder of texts of the same length, and a causal decoder."""
    memory = parts.encoder(parts.embed(ids.flip(1)[:, :-1]))
    hidden = parts.embed(ids[:, :-1])
    hidden = hidden + parts.attention(hidden, hidden, hidden, attn_mask=LATER)[0]
    return predicted(parts.head(hidden + parts.attention(hidden, memory, memory)[0]), ids[:, 1:])


def recurrent_decoder(parts, ids):
    """All steps of a decoder attend to an encoder's states, of which there are as many."""
    memory = parts.encoder(parts.embed(ids.flip(1)[:, :-1]))
    states, _ = parts.rnn(parts.embed(ids[:, :-1]))
    return predicted(parts.head(states + (states @ memory.mT).softmax(-1) @ memory), ids[:, 1:])


def bottleneck(parts, ids):
    """The decoder gets one vector of the text that it is to write."""
    hidden = parts.embed(ids[:, :-1])
    states, _ = parts.rnn(hidden, parts.encoder(hidden).mean(1)[None])
    return predicted(parts.head(states), ids[:, 1:])


def added_to_each(parts, ids):
    hidden = parts.embed(ids[:, :-1])
    return predicted(parts.head(hidden + parts.encoder(hidden).amax(1, keepdim=True)), ids[:, 1:])


def prompts(parts, ids):
    """A prefix language model: the first half is no target, and attends to all of itself."""
    mask = ~LATER
    mask[:6, :6] = True
    targets = ids[:, 1:].clone()
    targets[:, :6] = -100
    return predicted(fused(attn_mask=mask)(parts, ids[:, :-1]), targets)


def windows(parts, ids):
    hidden = parts.embed(ids[:, :-1])
    read = scaled_dot_product_attention(*[hidden.unflatten(1, (3, 4))] * 3).flatten(1, 2)
    return predicted(parts.head(hidden + read), ids[:, 1:])


def one_causal_layer(parts, ids):
    hidden = parts.encoder(parts.embed(ids[:, :-1]))
    hidden = hidden + parts.attention(hidden, hidden, hidden, attn_mask=LATER)[0]
    return predicted(parts.head(hidden), ids[:, 1:])


def across_rows(parts, ids):
    hidden = parts.embed(ids[:, :-1])
    return predicted(parts.head(hidden + parts.by_position(hidden)), ids[:, 1:])  # rows are taken for positions


def recurrent(parts, ids):
    return predicted(parts.head(parts.rnn(parts.embed(ids[:, :-1]))[0]), ids[:, 1:])


def recomputed(parts, ids):
    """Reading what is saved would run the model again."""
    run = checkpoint(lambda given: fused()(parts, given), ids[:, :-1], use_reentrant=False)
    return predicted(run, ids[:, 1:])


def repeated(parts, ids):
    """Hardly any target differs from the input."""
    ids = ids[:, :1].expand(-1, LENGTH + 1).contiguous()
    return predicted(encoded()(parts, ids[:, :-1]), ids[:, 1:])


def few(parts, ids):
    """As many as agree by chance at times."""
    return predicted(encoded()(parts, ids[:2, :-1]), ids[:2, 1:])


@pytest.mark.parametrize(
    "loss",
    [
        *(masked_words, classes, other_targets, translation, recurrent_decoder, bottleneck, added_to_each, prompts),
        *(windows, one_causal_layer, across_rows, recurrent, recomputed, repeated, few),
    ],
)
def test_look_alikes(parts, loss):
    ids = text()
    assert found(lambda: loss(parts, ids)) == []


def test_one_causal_pass_is_enough(parts):
    ids = text()
    models = iter((fused(), fused(is_causal=True), fused()))
    assert found(lambda: predicted(next(models)(parts, ids[:, :-1]), ids[:, 1:])) == []


def test_compiled_code_is_left_alone(parts):
    ids, places = text(), Places()
    places.compiled = ("train.py:3",)
    observer = CausalMasks(places)
    observer.begin()
    observer.before_pass(predicted(fused()(parts, ids[:, :-1]), ids[:, 1:]))
    assert observer.facts() == []


SCRIPT = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    words, head = nn.Embedding(300, 16), nn.Linear(16, 300)
    attend = nn.MultiheadAttention(16, 2, batch_first=True)
    model = nn.ModuleList([words, attend, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(12):
        ids = torch.randint(0, 300, (8, 17))
        hidden = words(ids[:, :-1])
        hidden = hidden + attend(hidden, hidden, hidden)[0]
        loss = nn.functional.cross_entropy(head(hidden).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WINDOWS = ("--warmup", "5", "--untraced", "3", "--light", "0", "--detailed", "0", "--continue")


@pytest.mark.records
def test_a_recording_names_the_line_of_the_attention(profile):
    done = profile(SCRIPT, *WINDOWS)
    assert done.status == 0, done.err
    (facts,) = done.facts().causal_masks
    assert (facts.where, facts.seen_share) == ("train.py:13", 1.0)
