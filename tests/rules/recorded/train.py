"""An ordinary training script of two ranks on a CPU, with one of several faults in it, or with that fault mended.

    torchrun --nproc-per-node 2 train.py FAULT [--mended]

What is recorded of it stands beside it under runs/: see record.py.
"""

import argparse
import contextlib
import copy
import gc
import itertools
import json
import os
import sys
import tempfile
import time

if "unsupported-dtype" in sys.argv:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # as on a CPU that does not compute in fp16

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.nn.functional import all_reduce
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    get_worker_info,
    random_split,
)

FAULTS = (
    "wide-gradients",
    "small-batch",
    "broadcast-buffers",
    "collectives-in-steps",
    "unused-parameters-searched",
    "sharded-optimizer",
    "sharded-parameters",
    "gathered-for-logging",
    "metrics-reduced",
    "tiny-gradients",
    "rank-placement",
    "double-precision",
    "scaler-without-need",
    "unsupported-dtype",
    "workers-restart",
    "same-data",
    "same-order",
    "garbage-collection",
    "unfused-optimizer",
    "late-rank",
    "uneven-ranks",
    "slow-steps",
    "oversubscribed-cores",
    "debug-switches",
    "growing-memory",
    "unsynchronized-gradients",
    "unsynchronized-ranks",
    "checkpointing-without-need",
    "periodic-steps",
    "work-between-steps",
    "iterable-dataset",
    "recompiles",
    "uncovered-cost",
    "per-tensor-loops",
    "unused-gradients",
    "padded-batches",
    "operator-loops",
    "matrix-decompositions",
    "long-convolutions",
    "averaged-one-by-one",
    "separate-backward-passes",
    "repeated-forward",
    "small-shard-units",
    "sharded-micro-batches",
    "kept-outputs",
    "frozen-batch-norm",
    "dense-tables",
    "evaluation-mode-kept",
    "updates-lost",
    "softmax-before-cross-entropy",
    "same-random-numbers",
    "schedule-out-of-step",
    "unfrozen-after-wrapping",
    "new-iterators",
    "parameters-without-optimizer",
    "ignored-targets",
    "one-hot-products",
    "full-sorts",
    "eager-attention",
    "generation-without-cache",
    "gradients-discarded",
    "loss-broadcast",
    "kept-by-reference",
    "broadcast-reductions",
    "written-optimizer",
    "labels-shifted-twice",
    "samples-changed-in-place",
    "memory-bound-functions",
    "flat-parameters",
    "slice-gradients",
    "repeated-rows",
    "weight-penalty",
    "upsampled-convolutions",
    "split-by-rank",
    "same-results",
    "look-alikes",
    "gradients-not-cleared",
    "optimizer-without-gradients",
)
parser = argparse.ArgumentParser()
parser.add_argument("fault", choices=FAULTS)
parser.add_argument("--mended", action="store_true")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()


ROWS = 40_000  # of an embedding table
WORDS = 2000  # of a vocabulary
IDS = (
    "padded-batches",
    "dense-tables",
    "ignored-targets",
    "one-hot-products",
    "labels-shifted-twice",
)  # the model's inputs, which are no targets


class Rows(Dataset):
    """Rows of a tensor, a whole batch of them at a time."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        return self.rows[indices]


class NoisyRows(Rows):
    """Rows with noise, which a generator of the data set draws."""

    def __init__(self, rows):
        super().__init__(rows)
        self.noise = np.random.default_rng(0)

    def __getitems__(self, indices):
        noise = self.noise.standard_normal((len(indices), self.rows.shape[1]), dtype=np.float32)
        return self.rows[indices] + 0.1 * torch.from_numpy(noise)


class Augmented(Dataset):
    """Rows with noise, each added to a copy of the row or to the row itself."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index].clone() if args.mended else self.rows[index]
        row += 0.1 * torch.randn_like(row)
        return row


def seeded(worker):
    """Give each worker of each rank noise of its own."""
    info = get_worker_info()
    info.dataset.noise = np.random.default_rng((info.seed, int(os.environ["RANK"])))


class Lines(IterableDataset):
    """Rows of text, without end; a rank parses those of all ranks, and drops the others' only then."""

    def __init__(self, rows, rank, ranks, parses_all):
        self.text = [" ".join(f"{value:.4f}" for value in row) for row in rows.tolist()]
        self.rank, self.ranks, self.parses_all = rank, ranks, parses_all
        self.ready = [self.parse(line) for line in self.text]

    def parse(self, line):
        return torch.tensor([float(value) for value in line.split()])

    def __iter__(self):
        at = 0
        while True:
            at += 1
            row = self.parse(self.text[at % len(self.text)]) if self.parses_all else self.ready[at % len(self.text)]
            if at % self.ranks == self.rank:
                yield row


class Texts(Dataset):
    """Token ids, 40 to 64 of them; 0 is the padding."""

    def __init__(self, count):
        self.texts = [torch.randint(1, 1000, (int(length),)) for length in torch.randint(40, 65, (count,))]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


def padded(texts):
    """The texts of a batch as rows: as long as the longest one, or always 128."""
    rows = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return rows if args.mended else nn.functional.pad(rows, (0, 128 - rows.shape[1]))


def apart(outputs):
    """How alike each row is to all others, row by row."""
    if args.mended:
        rows = nn.functional.normalize(outputs, dim=-1)
        return (rows @ rows.mT).mean()
    return torch.stack([nn.functional.cosine_similarity(row[None], outputs).mean() for row in outputs]).mean()


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


class Epoch:
    """What each step of an epoch has computed."""

    def __init__(self):
        self.outputs = []

    def add(self, *tensors):
        self.outputs.append(tensors)


def pair(first, second):
    """The group of two of four ranks that this one is in."""
    made = {ranks: dist.new_group(ranks) for ranks in (first, second)}
    return next(group for ranks, group in made.items() if dist.get_rank() in ranks)


def as_it_is(batch):
    return batch


def average(averages, model):
    """An exponential moving average of the weights."""
    for held, parameter in zip(averages, model.parameters(), strict=True):
        held.mul_(0.999).add_(parameter.detach(), alpha=0.001)


def log_outputs(outputs):
    """A line of JSON."""
    with open(os.devnull, "w") as sink:
        sink.write(json.dumps(outputs[:128].tolist()))


def lipschitz(model):
    """The product of the largest singular values of all layers."""
    product = torch.ones(())
    for parameter in model.parameters():
        if parameter.dim() == 2:
            product = product * (power_iteration(parameter) if args.mended else torch.linalg.svdvals(parameter)[0])
    return product


def power_iteration(weight):
    right = torch.randn(weight.shape[1])
    with torch.no_grad():
        for _ in range(2):
            left = nn.functional.normalize(weight @ right, dim=0)
            right = nn.functional.normalize(left @ weight, dim=0)
    return left @ weight @ right


@torch.no_grad()
def write(model, rows):
    """Continue each row by 14 positions, one after the other: each follows from the one before it."""
    rows = rows[:16, None].expand(-1, 24, -1)
    for _ in range(14):
        outputs = model(rows[:, -1:] if args.mended else rows)
        rows = torch.cat([rows, outputs[:, -1:]], dim=1)
    return rows[:, -1]


def reverberate(rows, response):
    """Each row with the echo that a response adds, which is longer than a row."""
    if args.mended:
        size = 2 * len(response)
        return torch.fft.irfft(torch.fft.rfft(rows, size) * torch.fft.rfft(response, size), size)[..., : rows.shape[1]]
    padded = nn.functional.pad(rows, (len(response) - 1, 0))
    return nn.functional.conv1d(padded[:, None], response.flip(0)[None, None])[:, 0]


def error(outputs, batch):
    if args.fault == "softmax-before-cross-entropy":
        return nn.functional.cross_entropy(outputs if args.mended else outputs.softmax(1), batch.argmax(1))
    if args.fault == "loss-broadcast":  # what a model with one output predicts of each row
        predictions, targets = outputs[:, :1], batch.mean(1)
        return ((predictions.squeeze(1) if args.mended else predictions) - targets).square().mean()
    if args.fault == "memory-bound-functions":
        return of_best_order(outputs, batch)
    return apart(outputs) if args.fault == "operator-loops" else (outputs - batch).square().mean()


def best_of(scores):
    """The positions of the ten highest scores of each row."""
    if args.mended:
        return scores.topk(10, dim=1).indices
    return scores.argsort(dim=1, descending=True)[:, :10]


def spread(outputs, centres):
    """The squared distance of each row to its nearest centre."""
    if args.mended:
        return torch.cdist(outputs, centres).square().amin(1).mean()
    return (outputs[:, None] - centres[None]).pow(2).sum(-1).amin(1).mean()


def contrast(made, wanted):
    """How far two parts are apart, each without its mean."""
    return ((made - made.mean(-1, keepdim=True)) - (wanted - wanted.mean(-1, keepdim=True))).square().mean(-1)


def of_best_order(outputs, batch):
    """Four parts of each row, in the order that fits best: of each two parts once, or again in each order."""
    made, wanted = outputs.unflatten(1, (4, -1)), batch.unflatten(1, (4, -1))
    orders = list(itertools.permutations(range(4)))
    if args.mended:
        pairs = contrast(made.unsqueeze(2), wanted.unsqueeze(1))
        scores = [pairs[:, range(4), order].mean(1) for order in orders]
    else:
        scores = [contrast(made[:, order], wanted).mean(1) for order in orders]
    return torch.stack(scores, 1).amin(1).mean()


def squares(model, only=""):
    """The sum of all squared weights, or of those whose names begin like this."""
    return sum(weight.pow(2).sum() for name, weight in model.named_parameters() if name.startswith(only))


class WrittenAdam(torch.optim.Optimizer):
    """Adam, operator by operator."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                state["mean"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                root = (state["square"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
                parameter.addcdiv_(state["mean"], root, value=-group["lr"] / (1 - first ** state["step"]))


def has(fault):
    return args.fault == fault and not args.mended


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
    if args.fault == "evaluation-mode-kept":
        return nn.Sequential(*layers(384, 2), nn.Dropout(0.1), nn.Linear(384, 384))
    return layers(384, 3)


def layers(width, count):
    return nn.Sequential(*(one for _ in range(count) for one in (nn.Linear(width, width), nn.ReLU())))


def build_loader(width):
    if args.fault == "small-batch":
        batch = 16 if has("small-batch") else 1536
    else:
        batch = {
            "iterable-dataset": 128,
            "unfused-optimizer": 64,
            "averaged-one-by-one": 64,
            "per-tensor-loops": 64,
            "unused-parameters-searched": 64,
            "wide-gradients": 256,
            "workers-restart": 64,
            "gathered-for-logging": 2048,
            "tiny-gradients": 256,
            "operator-loops": 64,
            "eager-attention": 4,
            "broadcast-reductions": 256,
            "written-optimizer": 64,
            "samples-changed-in-place": 64,
            "memory-bound-functions": 256,
            "slice-gradients": 64,
            "repeated-rows": 64,
            "weight-penalty": 64,
            "upsampled-convolutions": 16,
            "same-results": 512,
            "look-alikes": 256,
        }.get(args.fault, 768)
    if args.fault == "padded-batches":
        texts = Texts(640)
        sampler = DistributedSampler(texts)
        return DataLoader(texts, 16, sampler=sampler, collate_fn=padded, drop_last=True), sampler
    if args.fault == "dense-tables":
        ids = Rows(torch.randint(0, ROWS, (40 * 512,)))
        sampler = DistributedSampler(ids)
        return DataLoader(ids, 512, sampler=sampler, collate_fn=as_it_is, drop_last=True), sampler
    if args.fault in ("ignored-targets", "one-hot-products", "labels-shifted-twice"):
        ids = Rows(torch.randint(0, WORDS, (40 * 32, 32)))
        sampler = DistributedSampler(ids)
        return DataLoader(ids, 32, sampler=sampler, collate_fn=as_it_is, drop_last=True), sampler
    dtype = torch.float64 if has("double-precision") else torch.float32
    data = Rows(torch.randn(batch * (12 if args.fault == "workers-restart" else 40), width, dtype=dtype))
    options = {"collate_fn": as_it_is, "drop_last": True}
    if args.fault == "iterable-dataset":
        lines = Lines(data.rows[:64], dist.get_rank(), dist.get_world_size(), has("iterable-dataset"))
        return DataLoader(lines, 128), None
    if args.fault == "schedule-out-of-step":
        return accelerator().prepare(DataLoader(data, batch, shuffle=True, **options)), None
    if args.fault == "same-random-numbers":
        data = NoisyRows(data.rows)
        options |= {"num_workers": 2, "persistent_workers": True, "worker_init_fn": seeded if args.mended else None}
    if args.fault == "samples-changed-in-place":
        data, options = Augmented(data.rows), {"drop_last": True}
    if args.fault == "split-by-rank":  # nine tenths to train on
        seed = torch.Generator().manual_seed(dist.get_rank() if has("split-by-rank") else 0)
        data = random_split(data, [0.9, 0.1], generator=seed)[0]
    if args.fault == "look-alikes":  # rows of its own, of which no sampler takes a part
        own = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
        return DataLoader(own, batch, shuffle=True, **options), None
    if has("same-data"):
        return DataLoader(data, batch, shuffle=True, **options), None
    sampler = DistributedSampler(data)
    if args.fault == "workers-restart":
        options |= {"num_workers": 2, "persistent_workers": args.mended}
    return DataLoader(data, batch, sampler=sampler, **options), sampler


def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True, step_scheduler_with_optimizer=not args.mended)


def endless(loader):
    while True:
        yield from loader


@torch.no_grad()
def evaluate(model, rows):
    return sum(((model(rows) - rows).square().mean() for _ in range(20)), torch.zeros(()))


@torch.no_grad()
def validate(model, rows):
    model.eval()
    found = (model(rows) - rows).square().mean()
    if args.mended:
        model.train()
    return found


def save_checkpoint(model):
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"model": model.state_dict(), "history": torch.zeros(20_000_000)}, file.name)


@torch.no_grad()
def log_statistics(outputs):
    return [outputs[:, at].histc(20).tolist() for at in range(outputs.shape[1])]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2 if has("oversubscribed-cores") else 1)
    torch.autograd.set_detect_anomaly(has("debug-switches"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build_model()
    wide = args.fault in ("rank-placement", "eager-attention", "slice-gradients", "upsampled-convolutions")
    width = model.in_features if wide else next(model.parameters()).shape[-1]
    if has("double-precision"):
        model = model.double()
    if args.fault == "unused-gradients" and args.mended:  # only the last layer is trained
        model[:-2].requires_grad_(False)
    if args.fault in ("parameters-without-optimizer", "optimizer-without-gradients"):
        early = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if args.fault == "parameters-without-optimizer":
        model[-2] = nn.Linear(model[-2].in_features, model[-2].out_features)
    if has("updates-lost"):
        model = model.bfloat16()
    loader, sampler = build_loader(width)
    keeps = {"broadcast_buffers": False} if args.fault == "broadcast-buffers" and args.mended else {}
    if args.fault == "frozen-batch-norm":
        keeps = {"broadcast_buffers": False}
        model.train()
        if args.mended:
            model.backbone.eval()
    if args.fault == "unfrozen-after-wrapping":
        model[:2].requires_grad_(False)
    if args.fault == "tiny-gradients":
        keeps = {"bucket_cap_mb": 0.01}
    if has("unused-parameters-searched"):
        keeps = {"find_unused_parameters": True}
    if args.fault == "rank-placement":
        keeps = {"process_group": pair((0, 1), (2, 3)) if has("rank-placement") else pair((0, 2), (1, 3))}
    if has("sharded-parameters"):
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif has("flat-parameters"):
        for at, part in enumerate(model):
            model[at] = FullyShardedDataParallel(part, device_id=torch.device("cpu"))
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif args.fault in ("small-shard-units", "flat-parameters"):
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for part in model if args.mended else [one for one in model.modules() if isinstance(one, nn.Linear)]:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif args.fault == "sharded-micro-batches":
        for part in model:
            fully_shard(part, reshard_after_forward=False)
        fully_shard(model)
    elif args.fault in ("gathered-for-logging", "optimizer-without-gradients"):
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    elif not has("unsynchronized-ranks") and not has("averaged-one-by-one"):
        model = DistributedDataParallel(model, **keeps)
    if args.fault == "recompiles":
        torch._dynamo.config.recompile_limit = 1000
        model = torch.compile(model, dynamic=args.mended, backend="eager")
    weights = [parameter.detach() for parameter in model.parameters()]
    averages = [weight.clone() for weight in weights]
    if args.fault == "wide-gradients" and args.mended:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    of_table = None
    fused = not has("unfused-optimizer") and not has("sharded-parameters")
    if has("sharded-optimizer"):
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
    else:
        trained = model.module[-2] if args.fault == "unused-gradients" else model
        if args.fault == "dense-tables" and args.mended:
            of_table = torch.optim.SparseAdam([*model.module[0].parameters()])
            trained = model.module[1:]
        if has("parameters-without-optimizer") or has("optimizer-without-gradients"):
            optimizer = early
        else:
            rate = 1e-5 if args.fault == "updates-lost" else 1e-3
            optimizer = torch.optim.AdamW(trained.parameters(), lr=rate, fused=fused)
        if args.fault == "weight-penalty":
            decay = 2e-4 if args.mended else 0.0
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=decay, fused=True)
        if has("written-optimizer"):
            optimizer = WrittenAdam(model.parameters(), lr=1e-3)
    schedule = None
    if args.fault == "schedule-out-of-step":  # three epochs of this rank's batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader))
        schedule = accelerator().prepare(schedule)
    scaler = torch.amp.GradScaler("cpu", enabled=has("scaler-without-need"))
    samples_in_lists = [[i] for i in range(300_000)] if args.fault == "garbage-collection" else []

    if args.fault == "new-iterators":
        noise = DataLoader(Rows(torch.randn(150_000, 1)), 768, shuffle=True, collate_fn=as_it_is, drop_last=True)
        noises = endless(noise)

    if args.fault == "broadcast-reductions":
        centres = torch.randn(128, width)
    if args.fault == "long-convolutions":
        response = torch.randn(2048) * torch.exp(-torch.arange(2048) / 300) / 12

    step, epoch, history, results, best, lowest = 0, 0, [], Epoch(), None, float("inf")
    while step < args.steps:
        if sampler is not None and not has("same-order"):
            sampler.set_epoch(epoch)
        for batch in loader:
            if has("late-rank") and rank == 1:
                time.sleep(0.03)
            if has("uneven-ranks"):
                time.sleep(0.06 * ((step + rank) % 2))
            if samples_in_lists and (not args.mended or step % 100 == 99):
                gc.collect()
            if args.fault == "recompiles":
                batch = batch[: 256 + step * 37 % 512]  # as long as the longest sample of a batch
            if args.fault == "look-alikes":
                batch = batch[: len(batch) - step % 7]
            if args.fault == "long-convolutions":
                batch = reverberate(batch, response)
            if args.fault == "generation-without-cache":
                batch = torch.cat([write(model.module, batch), batch[16:]])
            if args.fault == "new-iterators":
                batch = batch + (next(iter(noise)) if has("new-iterators") else next(noises))
            accumulates = args.fault in ("gradients-discarded", "sharded-micro-batches") and step % 4 < 3
            if has("gradients-discarded"):
                optimizer.zero_grad()
            alone = accumulates or (has("unsynchronized-gradients") and step % 2)  # the latter steps all the same
            if args.fault == "sharded-micro-batches":
                model.set_requires_gradient_sync(not args.mended or not accumulates)
                alone = False
            with model.no_sync() if alone else contextlib.nullcontext():
                half = torch.float16 if args.fault == "unsupported-dtype" else torch.bfloat16
                casts = args.fault in ("scaler-without-need", "updates-lost") or has("unsupported-dtype")
                with torch.autocast("cpu", half, enabled=casts):
                    outputs = model(batch)
                    loss = outputs.square().mean() if args.fault in IDS else error(outputs, batch)
                    if args.fault == "broadcast-reductions":
                        loss = loss + 1e-2 * spread(outputs, centres)
                    if args.fault == "look-alikes":
                        loss = loss + 1e-4 * squares(model.module, only="gate")
                    if has("weight-penalty"):
                        loss = loss + 1e-4 * squares(model)
                    if args.fault == "matrix-decompositions":
                        loss = loss + 1e-3 * lipschitz(model)
                for part in (loss, *((outputs.mean(), outputs.std()) if has("separate-backward-passes") else ())):
                    scaler.scale(part).backward(retain_graph=has("separate-backward-passes"))
            if has("averaged-one-by-one"):
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            if accumulates:
                step += 1
                continue
            scaler.step(optimizer)
            scaler.update()
            if schedule is not None:
                schedule.step()
            if not has("gradients-not-cleared") or step % 100 == 0:
                optimizer.zero_grad()
            if of_table is not None:
                of_table.step()
                of_table.zero_grad()
            if args.fault == "gathered-for-logging" and (not args.mended or step % 50 == 0):
                norms = [parameter.full_tensor().norm().item() for parameter in model.parameters()]
                history.append(sum(norms))
            if args.fault == "metrics-reduced" and (not args.mended or step % 50 == 0):
                for metric in (loss.detach(), *outputs.detach().mean(0)[:9].unbind()):  # one by one
                    dist.all_reduce(metric)
            if args.fault == "collectives-in-steps" and (not args.mended or step % 50 == 0):
                losses = [None] * dist.get_world_size()
                dist.all_gather_object(losses, {"loss": loss.item(), "rank": rank, "host": os.uname().nodename})
                dist.barrier()
            if args.fault == "evaluation-mode-kept" and step % 8 == 7:
                validate(model.module, batch[:32])
            if args.fault == "kept-by-reference" and step % 8 == 3 and loss.item() < lowest:
                lowest = loss.item()
                best = copy.deepcopy(model.state_dict()) if args.mended else model.state_dict()
            if args.fault == "unfrozen-after-wrapping" and step == 1:
                model.module.requires_grad_(True)
                model = DistributedDataParallel(model.module) if args.mended else model
            if args.fault == "per-tensor-loops":
                if args.mended:
                    torch._foreach_lerp_(averages, weights, 0.001)
                else:
                    average(averages, model)
            if args.fault == "full-sorts":
                best_of(outputs.detach())
            if args.fault == "uncovered-cost" and (not args.mended or step % 50 == 49):
                log_outputs(outputs)
            if has("slow-steps") and step % 5 == 0:
                time.sleep(0.1)  # as long as it may take to write a checkpoint
            if has("periodic-steps") and rank == 0:
                if step % 5 == 4:
                    evaluate(model.module, batch)
                if step % 4 == 3:
                    save_checkpoint(model)
            if args.fault == "work-between-steps" and (not args.mended or step % 50 == 0):
                log_statistics(outputs)
            if args.fault == "kept-outputs":
                results.add(loss.detach()) if args.mended else results.add(loss, outputs)
            if has("growing-memory"):
                history.append(outputs.detach())  # to look at, some day
            step += 1
            if step >= args.steps:
                break
        epoch += 1
    if best is not None:
        model.load_state_dict(best)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
