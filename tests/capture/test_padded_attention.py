"""Attention to the padding of sequences of tokens: real graphs of small models."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from dptune.capture.injected.observe.attention_weights import Fused
from dptune.capture.injected.observe.padded_attention import PaddedAttention

from .graph_passes import Places, facts_of

WORDS, ROWS, LENGTH, WIDTH, HEADS, CLASSES = 300, 6, 20, 8, 2, 3
LENGTHS = torch.tensor([8, 20, 12, 9, 17, 10])
PADDING = torch.arange(LENGTH) >= LENGTHS[:, None]
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
SHARE = float(PADDING[[0, 3, 5, 2]].float().mean())  # of the four with most


def found(loss_of, passes=3, places=Places):
    """What passes of this loss show."""
    return facts_of(PaddedAttention(places()), loss_of, passes)


def text(padding=PADDING, pad=0):
    ids = torch.randint(1, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    return ids.masked_fill(ids == pad, pad + 1).masked_fill(padding, pad)


class Parts(nn.Module):
    """Layers of all models below."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.answers, self.segments = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH)
        self.project, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.encoder, self.by_position = encoder(batch_first=True), encoder(batch_first=False)
        self.both = nn.Transformer(WIDTH, HEADS, 1, 1, 2 * WIDTH, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 1, WIDTH))

    def embed(self, ids):
        return self.words(ids) + self.places.weight[: ids.shape[1]]


def encoder(batch_first):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.1, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    return Parts()


def layer(*attends):
    """Hidden states after layers of such attention over queries, keys and values of (rows, heads, positions, width)."""

    def model(parts, ids):
        hidden = parts.embed(ids)
        for attend in attends:
            heads = parts.project(hidden).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            hidden = hidden + attend(*heads).transpose(1, 2).flatten(2)
        return hidden

    return model


def fused(**options):
    return layer(*[lambda q, k, v: scaled_dot_product_attention(q, k, v, **options)] * 2)


def written(of_scores=lambda scores: scores, of_weights=lambda weights: weights):
    """Operator by operator."""
    return layer(lambda q, k, v: of_weights(of_scores(q @ k.mT / 2).softmax(-1)) @ v)


def multihead(**options):
    def model(parts, ids):
        hidden = parts.embed(ids)
        return hidden + parts.attention(hidden, hidden, hidden, **options)[0]

    return model


def encoded(**options):
    return lambda parts, ids: parts.encoder(parts.embed(ids), **options)


def by_position(**options):
    """Positions first, as torch's layers take them by default, of ids in the same order."""

    def model(parts, ids):
        hidden = parts.words(ids.mT.contiguous()) + parts.places.weight[:, None]
        return parts.by_position(hidden, **options).transpose(0, 1)

    return model


def merged(hide=lambda scores: scores):
    """One dimension for sequences and heads."""

    def attend(q, k, v):
        q, k, v = (each.flatten(0, 1) for each in (q, k, v))
        return (hide(torch.bmm(q, k.mT)).softmax(-1) @ v).unflatten(0, (ROWS, HEADS))

    return layer(attend)


def heads_first(hide=lambda scores: scores):
    """Heads before sequences."""

    def attend(q, k, v):
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        return (hide(q @ k.mT).softmax(-1) @ v).transpose(0, 1)

    return layer(attend)


def projected_by_einsum():
    """Each head's weights in a dimension of their own."""

    def model(parts, ids):
        hidden = parts.embed(ids)
        heads = parts.project.weight.view(3, HEADS, WIDTH // HEADS, WIDTH)
        q, k, v = (torch.einsum("btd,hed->bhte", hidden, weight) for weight in heads)
        return torch.einsum("bhqk,bhkd->bqhd", (q @ k.mT).softmax(-1), v).flatten(2)

    return model


def beside_others(before, after, **options):
    """Between positions that are no tokens, as of an image."""

    def model(parts, ids):
        others = parts.query.expand(ROWS, before + after, WIDTH)
        hidden = torch.cat([others[:, :before], parts.embed(ids), others[:, before:]], 1)
        return parts.encoder(hidden, **options)

    return model


def translated(**options):
    """Another sequence that attends to the tokens; those attend to each other with a mask."""

    def model(parts, ids):
        later = nn.Transformer.generate_square_subsequent_mask(7)
        answers = parts.answers(ids[:, :7])
        return parts.both(
            parts.embed(ids), answers, tgt_mask=later, src_key_padding_mask=ids == 0, tgt_is_causal=True, **options
        )

    return model


def pooled(**options):
    """One query that is learned attends to all tokens."""

    def model(parts, ids):
        hidden = parts.embed(ids)
        return parts.attention(parts.query.expand(ROWS, 1, WIDTH), hidden, hidden, **options)[0]

    return model


def classified(parts, model, ids, **options):
    """The loss of the mean over all positions."""
    return cross_entropy(parts.head(model(parts, ids).mean(1)), ids[:, 0] % CLASSES, **options)


FORMS = [
    *(fused(), fused(dropout_p=0.1), fused(attn_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool))),
    fused(attn_mask=PADDING[:, None, None]),  # for the wrong side
    *(fused(attn_mask=torch.zeros(ROWS, 1, LENGTH, LENGTH)), fused(attn_mask=~PADDING[..., None][:, None])),
    *(written(), written(lambda scores: scores + 0.1, nn.Dropout(0.3)), written(lambda s: s * ~PADDING[:, None, None])),
    layer(lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(3), v)),
    *(merged(), heads_first(), multihead(), multihead(need_weights=False), encoded(), by_position()),
    projected_by_einsum(),
    multihead(key_padding_mask=~PADDING & (torch.arange(LENGTH) > 0)),  # inverted
]


@pytest.mark.parametrize("model", FORMS)
def test_attention_to_padding(parts, model):
    ids = text()
    (attention,) = found(lambda: classified(parts, model, ids))
    assert attention.kind == "self"
    assert attention.filler == 0
    assert not attention.padding_idx
    assert attention.positions == LENGTH
    assert attention.padding_share == pytest.approx(SHARE)
    assert 0.2 < attention.weight_share <= 1
    assert (attention.passes, attention.passes_seen) == (3, 3)
    assert "test_padded_attention.py:" in attention.where


def test_weights_are_those_of_the_positions_that_are_no_padding(parts):
    ids = text()
    kept = []

    def keep(weights):
        kept.append(weights.detach())
        return weights

    (attention,) = found(lambda: classified(parts, written(of_weights=keep), ids))
    shares = [kept[-1][row, 0, : LENGTHS[row], LENGTHS[row] :].sum(1).mean() for row in (0, 3, 5, 2)]
    assert attention.weight_share == pytest.approx(float(sum(shares) / 4))


def test_fused_attention_has_the_weights_of_written(parts):
    ids = text()
    scaled = [found(lambda model=model: classified(parts, model, ids))[0] for model in (fused(), written())]
    (once,) = found(lambda: classified(parts, layer(scaled_dot_product_attention), ids))
    assert once.weight_share == pytest.approx(scaled[1].weight_share, abs=1e-5)
    assert scaled[0].layers == 2
    assert not scaled[0].certain, "nothing but the ids shows the padding"


@pytest.mark.parametrize("model", [translated(), pooled()])
def test_other_queries_that_attend_to_padding(parts, model):
    ids = text()
    (attention,) = found(lambda: classified(parts, model, ids))
    assert attention.kind == "cross"
    assert attention.weight_share > 0.2


def test_padding_before_the_text_is_seen_behind_a_causal_mask(parts):
    ids = text(PADDING.flip(1))
    (attention,) = found(lambda: classified(parts, fused(is_causal=True), ids))
    assert attention.padding_share == pytest.approx(SHARE)
    assert attention.weight_share > 0.2


def test_the_embedding_names_the_padding(parts):
    ids, named = text(pad=5), Parts()
    named.words = nn.Embedding(WORDS, WIDTH, padding_idx=5)
    (attention,) = found(lambda: classified(named, encoded(), ids))
    assert (attention.filler, attention.padding_idx, attention.certain) == (5, True, True)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 4), (2, 3)])
def test_tokens_between_other_positions(parts, before, after):
    """With a mask of the tokens alone, and with one of all; weights of the tokens' own queries and of others count."""
    ids = text()
    (attention,) = found(lambda: classified(parts, beside_others(before, after), ids))
    assert (attention.kind, attention.positions) == ("self", LENGTH)
    hidden = nn.functional.pad(PADDING, (before, after), value=False)
    assert found(lambda: classified(parts, beside_others(before, after, src_key_padding_mask=hidden), ids)) == []


def test_the_last_padding_before_a_text_may_predict_its_first_word(parts):
    """A causal model whose targets are the next ids, and are ignored where these are padding."""
    ids = text(PADDING.flip(1))
    wanted = ids[:, 1:].masked_fill(PADDING.flip(1)[:, 1:], -100) % CLASSES
    wanted = wanted.masked_fill(PADDING.flip(1)[:, 1:], -100)

    def loss(**options):
        logits = parts.head(fused(**options)(parts, ids))[:, :-1]
        return cross_entropy(logits.flatten(0, 1), wanted.flatten())

    (attention,) = found(lambda: loss(is_causal=True))
    assert (attention.left, attention.certain) == (True, True)
    hidden = CAUSAL & ~PADDING.flip(1)[:, None, None]
    assert found(lambda: loss(attn_mask=hidden | torch.eye(LENGTH, dtype=torch.bool))) == []


def test_a_mask_beside_a_causal_one_counts():
    """As fused attention of CPUs takes both."""
    query = torch.randn(1, 1, LENGTH, WIDTH)
    added = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(torch.arange(LENGTH) < 5, HIDDEN)
    weights = Fused(query, query, added, True, WIDTH**-0.5).weights((0, 0), torch.arange(6, LENGTH))
    expected = (query @ query.mT * WIDTH**-0.5 + added).masked_fill(~CAUSAL, HIDDEN).softmax(-1)[0, 0, 6:]
    assert torch.allclose(weights, expected, atol=1e-6)


def test_losses_that_the_script_drops_at_padding_are_no_targets(parts):
    ids = text()

    def loss(kept):
        losses = cross_entropy(
            parts.head(encoded()(parts, ids)).flatten(0, 1), (ids % CLASSES).flatten(), reduction="none"
        )
        return (losses * kept.flatten()).sum() / kept.sum()

    (attention,) = found(lambda: loss((~PADDING).float()))
    assert attention.certain
    assert found(lambda: loss(torch.ones_like(PADDING).float())) == []


def test_positions_whose_results_the_script_takes_are_no_padding(parts):
    """Where a sequence ends, its answer is computed."""
    ids = text()

    def loss(taken):
        return parts.head(encoded()(parts, ids)[taken]).square().mean()

    assert found(lambda: loss(PADDING)) == []
    (attention,) = found(lambda: loss(~PADDING))
    assert attention.certain


def test_scores_of_another_order_are_not_read(parts):
    """Of (rows, queries, heads, keys): their queries would be taken for heads."""

    def model(parts, ids):
        hidden = parts.embed(ids)
        q, k, v = parts.project(hidden).unflatten(-1, (3, HEADS, -1)).unbind(2)
        weights = torch.einsum("bqhd,bkhd->bqhk", q, k).softmax(-1)
        return torch.einsum("bqhk,bkhd->bqhd", weights, v).flatten(2)

    ids = text()
    assert found(lambda: classified(parts, model, ids)) == []


def test_targets_that_the_loss_ignores_at_padding(parts):
    ids = text()
    tags = (ids % CLASSES).masked_fill(PADDING, -100)
    (attention,) = found(lambda: cross_entropy(parts.head(encoded()(parts, ids)).flatten(0, 1), tags.flatten()))
    assert attention.layers == 2


HIDDEN = float("-inf")


@pytest.mark.parametrize(
    "model",
    [
        fused(attn_mask=~PADDING[:, None, None]),
        fused(attn_mask=torch.zeros(ROWS, 1, 1, LENGTH).masked_fill(PADDING[:, None, None], -1e9)),
        fused(attn_mask=(~PADDING[:, None, None] | torch.eye(LENGTH, dtype=torch.bool))),  # padding sees itself
        *(fused(attn_mask=~PADDING[:, None, None] & CAUSAL), fused(is_causal=True)),
        written(lambda scores: scores.masked_fill(PADDING[:, None, None], HIDDEN)),
        written(lambda scores: scores - 1e4 * PADDING[:, None, None]),
        written(of_weights=lambda weights: weights * ~PADDING[:, None, None]),
        written(of_weights=lambda weights: weights.masked_fill(PADDING[:, None, None], 0)),
        merged(lambda scores: scores.masked_fill(PADDING.repeat_interleave(HEADS, 0)[:, None], HIDDEN)),
        merged(lambda scores: scores.masked_fill(PADDING.repeat(HEADS, 1)[:, None], HIDDEN)),
        heads_first(lambda scores: scores.masked_fill(PADDING[None, :, None], HIDDEN)),
        multihead(key_padding_mask=PADDING),
        multihead(key_padding_mask=PADDING, need_weights=False),
        *(encoded(src_key_padding_mask=PADDING), by_position(src_key_padding_mask=PADDING)),
        encoded(mask=nn.Transformer.generate_square_subsequent_mask(LENGTH), is_causal=True),
        *(translated(memory_key_padding_mask=PADDING), pooled(key_padding_mask=PADDING)),
        lambda parts, ids: parts.embed(ids),
        layer(scaled_dot_product_attention, partial(scaled_dot_product_attention, attn_mask=~PADDING[:, None, None])),
        lambda parts, ids: checkpoint(encoded(), parts, ids, use_reentrant=False),
    ],
)
def test_padding_that_is_hidden_or_cannot_be_known(parts, model):
    ids = text()
    assert found(lambda: classified(parts, model, ids)) == []


def in_two_parts(ids):
    """A question and an answer."""
    return (torch.arange(LENGTH) >= LENGTHS[:, None]).long().expand_as(ids)


@pytest.mark.parametrize(
    "ids",
    [
        text(torch.zeros_like(PADDING)),
        text(torch.arange(LENGTH).expand(ROWS, LENGTH) >= 17),  # all end with the same three tokens
        (text() % 3 + 1).masked_fill(PADDING, 0),  # few different ids
        text().sort(1, descending=True).values,  # smallest last
        torch.where(torch.arange(LENGTH) == 3, 0, text()),  # the value is elsewhere, too
        text(torch.arange(LENGTH) >= torch.tensor([20] * 5 + [19])[:, None]),  # one position of one sequence
    ],
)
def test_other_ends_of_rows(parts, ids):
    assert found(lambda: classified(parts, encoded(), ids)) == []


def test_segments_are_no_padding(parts):
    ids = text(torch.zeros_like(PADDING))

    def model(parts, ids):
        return parts.encoder(parts.embed(ids) + parts.segments(in_two_parts(ids)))

    assert found(lambda: classified(parts, model, ids)) == []


@pytest.mark.parametrize("rows_first", [True, False])
def test_positions_whose_targets_count_are_no_padding(parts, rows_first):
    ids = text()

    def loss():
        logits, tags = parts.head(encoded()(parts, ids)), ids % CLASSES
        if not rows_first:
            logits, tags = logits.transpose(0, 1), tags.mT
        return cross_entropy(logits.flatten(0, 1), tags.flatten())

    assert found(loss) == []


def test_a_mask_in_a_later_pass_keeps_it_quiet(parts):
    ids, masks = text(), [None, PADDING, None]

    def loss():
        return classified(parts, encoded(src_key_padding_mask=masks.pop()), ids)

    assert found(loss) == []


def test_little_padding_shows_nothing(parts):
    """Neither attention to it nor, because its weight is small, a mask."""
    lengths = [[60] + [64] * 5, [40] + [64] * 5, [40] + [64] * 5]

    def loss():
        padding = torch.arange(64) >= torch.tensor(lengths.pop(0))[:, None]
        ids = torch.randint(1, WORDS, (ROWS, 64)).masked_fill(padding, 0)
        return classified(parts, lambda parts, ids: parts.encoder(parts.words(ids)), ids)

    (attention,) = found(loss)
    assert (attention.passes, attention.padding_share) == (2, 24 / 64)


def test_batches_of_different_lengths_are_padded(parts):
    longest = [20, 24, 20]

    def loss():
        most = longest.pop(0)
        padding = torch.arange(most) >= torch.tensor([8, most, 12, 9, 17, 10])[:, None]
        ids = torch.randint(1, WORDS, (ROWS, most)).masked_fill(padding, 0)
        return classified(parts, lambda parts, ids: parts.encoder(parts.words(ids)), ids)

    (attention,) = found(loss)
    assert attention.certain


def test_code_that_is_compiled_is_not_read(parts):
    class Compiled(Places):
        compiled = ("model",)

    ids = text()
    assert found(lambda: classified(parts, encoded(), ids), places=Compiled) == []


def test_later_passes_are_not_read(parts):
    ids = text()
    (attention,) = found(lambda: classified(parts, encoded(), ids), passes=9)
    assert (attention.passes, attention.passes_seen) == (6, 6)
