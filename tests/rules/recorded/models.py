"""The models that the script trains."""

from collections import deque

import torch
import torch.distributed as dist
from options import ROWS, WORDS, args, has
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.utils.checkpoint import checkpoint


class Split(nn.Module):
    """A part of each layer's inputs; what the parts of a group make of theirs is added up."""

    def __init__(self, width, count, group):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.group = group
        self.in_features = width

    def forward(self, rows):
        for layer in self.layers:
            rows = all_reduce(layer(rows), group=self.group)
        return rows


class Blocks(nn.Sequential):
    """Layers two by two, each pair of which keeps nothing of its forward pass."""

    def forward(self, rows):
        for at in range(0, len(self), 2):
            rows = checkpoint(lambda rows, at=at: self[at + 1](self[at](rows)), rows, use_reentrant=False)
        return rows


class Pretrained(nn.Module):
    """A head on a backbone that is not trained."""

    def __init__(self, width):
        super().__init__()
        self.in_features = width
        self.backbone = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = layers(width, 2)
        self.backbone.requires_grad_(False)

    def forward(self, rows):
        return self.head(self.backbone(rows))


class Autoencoder(nn.Module):
    """Reconstruction, and a penalty on the codes: they are computed once, or once for each."""

    def __init__(self, width):
        super().__init__()
        self.encoder = layers(width, 3)
        self.decoder = layers(width, 2)

    def forward(self, rows):
        codes = self.encoder(rows)
        outputs = self.decoder(codes)
        if not args.mended:
            codes = self.encoder(rows)
        return outputs + 0.01 * codes.mean()


class Masked(nn.Module):
    """A language model of which one target in eight counts, and others are -100."""

    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = layers(width, 3)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        labels = torch.where(torch.arange(ids.shape[1]) % 8 == 7, ids, -100)
        hidden = self.layers(self.words(ids))
        if args.mended:
            hidden, labels = hidden[labels != -100], labels[labels != -100]
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, -2), labels.flatten())


class NextWord(nn.Module):
    """A language model that shifts the labels itself, which are shifted before or not."""

    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = layers(width, 3)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        ids, labels = (ids, ids) if args.mended else (ids[:, :-1], ids[:, 1:])
        logits = self.head(self.layers(self.words(ids)))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Attentive(nn.Module):
    """A language model of one layer of attention, which hides later words or does not."""

    def __init__(self, words, width):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.project, self.layers = nn.Linear(width, 3 * width), layers(width, 2)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        hidden = self.words(ids[:, :-1]) + self.places.weight[: ids.shape[1] - 1]
        q, k, v = self.project(hidden).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        read = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=args.mended)
        hidden = hidden + self.layers(read.transpose(1, 2).flatten(2))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), ids[:, 1:].flatten())


class Classifying(nn.Module):
    """Classes of sequences that end in padding, 0, which attention hides or does not."""

    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layers, self.head = layers(width, 2), nn.Linear(width, 8)

    def forward(self, ids):
        hidden, padding = self.words(ids), ids == 0
        hidden = hidden + self.attention(hidden, hidden, hidden, key_padding_mask=padding if args.mended else None)[0]
        pooled = self.layers(hidden).masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
        return nn.functional.cross_entropy(self.head(pooled), ids[:, 0] % 8)


class Padded(nn.Module):
    """A language model whose loss leaves out the padding, 0, or counts it."""

    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.layers = layers(width, 3)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        logits = self.head(self.layers(self.words(ids[:, :-1])))
        ignored = {"ignore_index": 0} if args.mended else {}
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), **ignored)


class Detaching(nn.Module):
    """An encoder and a head, to which no gradient gets through."""

    def __init__(self, width):
        super().__init__()
        self.encoder = layers(width, 2)
        self.head = nn.Linear(width, width)

    def forward(self, rows):
        features = self.encoder(rows)
        return self.head(features if args.mended else features.detach())


class Halves(nn.Module):
    """Normalization over all rows of a batch, or over its two halves."""

    def __init__(self, width):
        super().__init__()
        self.layers = layers(width, 3)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, rows):
        rows = self.layers(rows)
        if args.mended:
            return self.norm(rows)
        return self.norm(rows.unflatten(0, (2, -1)).mT).mT.flatten(0, 1)


class Remembering(nn.Module):
    """Rows in 16 positions, which an LSTM reads with or without the state that rows of the previous batch left."""

    def __init__(self, width):
        super().__init__()
        self.layers = layers(width, 1)
        self.rnn = nn.LSTM(width // 16, width // 16, batch_first=True)
        self.state = None

    def forward(self, rows):
        outputs, state = self.rnn(self.layers(rows).unflatten(1, (16, -1)), self.state)
        if not args.mended:
            self.state = tuple(part.detach() for part in state)
        return outputs.flatten(1)


class Convolving(nn.Module):
    """A convolution over the 32 times of 12 channels that a row has; `mended`: times and channels are transposed."""

    def __init__(self, width):
        super().__init__()
        self.layers = layers(width, 2)
        self.enter = nn.Linear(12, 12)
        self.convolve = nn.Conv1d(12, 12, 3, padding=1)

    def forward(self, rows):
        times = self.enter(self.layers(rows).unflatten(1, (-1, 12)))
        channels = times.transpose(1, 2) if args.mended else times.view(-1, 12, times.shape[1])
        return self.convolve(channels).flatten(1)


class Songs(nn.Module):
    """The vectors of a session's songs, which are looked up in a table."""

    def __init__(self, count, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(count, width))
        self.layers = layers(width, 3)

    def look_up(self, ids):
        if args.mended:
            return nn.functional.embedding(ids, self.table)
        return nn.functional.one_hot(ids, len(self.table)).float() @ self.table

    def forward(self, ids):
        return self.layers(self.look_up(ids))


class Reading(nn.Module):
    """A state that goes over the 96 positions of each row, which are taken one by one or all at once."""

    def __init__(self, width):
        super().__init__()
        self.in_features = 96 * width
        self.layers = layers(width, 3)
        self.keep = nn.Parameter(torch.zeros(width))

    def forward(self, rows):
        inputs = self.layers(rows.view(len(rows), 96, -1))
        positions = inputs.unbind(1) if args.mended else [inputs[:, at] for at in range(96)]
        keep, states = self.keep.sigmoid(), [torch.zeros_like(positions[0])]
        for position in positions:
            states.append(torch.lerp(position, states[-1], keep))
        return torch.stack(states[1:], 1).flatten(1)


class Scoring(nn.Module):
    """Scores of six candidates for each row, which is encoded once, or once for each candidate."""

    def __init__(self, width):
        super().__init__()
        self.rows = layers(width, 3)
        self.candidates = nn.Parameter(torch.randn(6, width))
        self.output = nn.Linear(width, width)

    def forward(self, rows):
        candidates = self.candidates.repeat(len(rows), 1)
        encoded = self.rows(rows if args.mended else rows.repeat_interleave(6, 0))
        if args.mended:
            encoded = encoded.repeat_interleave(6, 0)
        return self.output((encoded * candidates).unflatten(0, (-1, 6)).mean(1))


class Segmenting(nn.Module):
    """Eight classes of each pixel of a picture of 32 x 32, from features of 4 x 4 pixels that a row has."""

    def __init__(self, channels):
        super().__init__()
        self.in_features = channels * 16
        self.features = nn.Conv2d(channels, channels, 3, padding=1)
        self.classify = nn.Conv2d(channels, 8, 1)

    def forward(self, rows):
        features = self.features(rows.unflatten(1, (-1, 4, 4))).relu()
        if args.mended:
            scores = nn.functional.interpolate(self.classify(features), size=32, mode="bilinear")
        else:
            scores = self.classify(nn.functional.interpolate(features, size=32, mode="bilinear"))
        return nn.functional.avg_pool2d(scores, 2).flatten(1)


class Propagating(nn.Module):
    """A layer after which columns are mixed by a fixed matrix, which is normalized in each pass, or once."""

    def __init__(self, width):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        mixing = (torch.rand(width, width) > 0.9).float() + torch.eye(width)
        self.register_buffer("mixing", normalized(mixing) if args.mended else mixing)

    def forward(self, rows):
        mixing = self.mixing if args.mended else normalized(self.mixing)
        return self.leave((self.enter(rows) @ mixing).relu())


def normalized(matrix):
    scale = torch.diag(matrix.sum(1).pow(-0.5))
    return scale @ matrix @ scale


class TwoViews(nn.Module):
    """Two views of each row: the encoder runs twice on the same rows, with other dropout masks."""

    def __init__(self, width):
        super().__init__()
        self.encoder = nn.Sequential(*layers(width, 2), nn.Dropout(0.1))
        self.gate = nn.Parameter(torch.ones(width))

    def forward(self, rows):
        views = self.encoder(rows), self.encoder(rows)
        noise = torch.randn(2 * len(rows), rows.shape[1])
        nearby = self.encoder(rows.repeat_interleave(2, 0) + noise)  # pairs of rows that differ
        return self.gate * (views[0] + views[1] + nearby[::2]) + waves(len(rows), rows.shape[1])


def waves(rows, width):
    """For each row and column, of a length that batches differ in."""
    return torch.outer(torch.arange(rows) / rows, torch.arange(float(width))).sin()


class Attending(nn.Module):
    """One layer of attention of 4 heads over rows of 512 positions, whose scores are kept or not."""

    def __init__(self, width):
        super().__init__()
        self.in_features = 512 * width
        self.project = nn.Linear(width, 3 * 4 * width)
        self.output = nn.Linear(4 * width, width)

    def forward(self, rows):
        positions = rows.view(len(rows), 512, -1)
        parts = self.project(positions).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        return self.output(attend(q, k, v).transpose(1, 2).flatten(2)).flatten(1)


def attend(q, k, v):
    if args.mended:
        return nn.functional.scaled_dot_product_attention(q, k, v)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v


def pair(first, second):
    """The group of two of four ranks that this one is in."""
    made = {ranks: dist.new_group(ranks) for ranks in (first, second)}
    return next(group for ranks, group in made.items() if dist.get_rank() in ranks)


def record_correlations(model):
    """Keep how the units of each layer correlate, to be drawn later."""
    kept = deque(maxlen=8)

    def record(module, inputs, output):
        kept.append(torch.corrcoef(output.detach().T).numpy())

    for layer in model:
        layer.register_forward_hook(record)


def seed_by_rank(model):
    """Other weights on each rank; `mended`: those of rank 0 on all of them."""
    torch.manual_seed(1 + dist.get_rank())
    for part in model:
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    torch.manual_seed(0)
    if args.mended:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)


def average_gradients(model):
    """Over all ranks, in one message."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    pieces = (flat / dist.get_world_size()).split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(to) for part, to in zip(pieces, gradients, strict=True)])


def build_model():
    if args.fault == "broadcast-buffers":  # a table of 4 MB, the same on all ranks
        model = layers(256, 8)
        model.register_buffer("positions", torch.randn(1024, 1024))
        return model
    if args.fault in ("unfused-optimizer", "unused-parameters-searched", "per-tensor-loops", "averaged-one-by-one"):
        return nn.Sequential(*(one for _ in range(40) for one in (nn.Linear(16, 16), nn.LayerNorm(16))))
    if args.fault == "written-optimizer":
        return nn.Sequential(*(one for _ in range(12) for one in (nn.Linear(192, 192), nn.ReLU())))
    if args.fault == "wide-gradients":
        return layers(256, 9)
    if args.fault == "padded-batches":
        return nn.Sequential(nn.Embedding(1000, 256), *layers(256, 3))
    if args.fault == "dense-tables":
        return nn.Sequential(nn.Embedding(ROWS, 32, sparse=args.mended), *layers(32, 3))
    if args.fault == "operator-loops":
        return layers(64, 3)
    if args.fault == "ignored-targets":
        return Masked(WORDS, 64)
    if args.fault == "labels-shifted-twice":
        return NextWord(WORDS, 64)
    if args.fault == "padding-learned":
        return Padded(WORDS, 64)
    if args.fault == "padding-attended":
        return Classifying(WORDS, 64)
    if args.fault == "causal-mask-missing":
        return Attentive(WORDS, 64)
    if args.fault == "unreached-parameters":
        return Detaching(384)
    if args.fault == "few-samples-normalized":
        return Halves(384)
    if args.fault == "state-carried-over":
        return Remembering(384)
    if args.fault == "view-for-transpose":
        return Convolving(384)
    if args.fault == "one-hot-products":
        return Songs(WORDS, 64)
    if args.fault == "long-convolutions":
        return nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), *layers(256, 1), nn.Linear(256, 1024))
    if args.fault == "small-batch":
        return nn.Sequential(*([nn.Linear(64, 64), nn.ReLU()] * 40))  # one layer, over and over: few gradients
    if args.fault == "gathered-for-logging":  # three layers, over and over: little is gathered for the passes
        return nn.Sequential(*([*layers(256, 3)] * 3))
    if args.fault == "tiny-gradients":
        return nn.Sequential(*(one for _ in range(40) for one in (nn.Linear(32, 32), nn.LayerNorm(32))))
    if args.fault in ("sharded-optimizer", "sharded-parameters"):
        return layers(512, 4)
    if args.fault in ("memory-bound-functions", "weight-penalty"):
        return layers(768, 4)
    if args.fault == "rank-placement":  # launchers place ranks 0 and 1 on one host, 2 and 3 on the other
        return Split(64, 3, pair((0, 2), (1, 3)) if has("rank-placement") else pair((0, 1), (2, 3)))
    if has("checkpointing-without-need"):
        return Blocks(*layers(384, 6))
    if args.fault == "checkpointing-without-need":
        return layers(384, 6)
    if args.fault == "unsupported-dtype":
        return layers(192, 3)
    if args.fault in ("small-shard-units", "flat-parameters", "sharded-micro-batches"):
        return nn.Sequential(*(layers(256, 5) for _ in range(2)))
    if args.fault == "frozen-batch-norm":
        return Pretrained(384)
    if args.fault == "repeated-forward":
        return Autoencoder(384)
    if args.fault == "eager-attention":
        return Attending(16)
    if args.fault == "slice-gradients":
        return Reading(64)
    if args.fault == "same-results":
        return Propagating(512)
    if args.fault == "look-alikes":
        return TwoViews(384)
    if args.fault == "repeated-rows":
        return Scoring(256)
    if args.fault == "upsampled-convolutions":
        return Segmenting(128)
    if args.fault in ("evaluation-mode-kept", "training-mode-in-evaluation"):
        return nn.Sequential(*layers(384, 2), nn.Dropout(0.1), nn.Linear(384, 384))
    return layers(384, 3)


def layers(width, count):
    return nn.Sequential(*(one for _ in range(count) for one in (nn.Linear(width, width), nn.ReLU())))
