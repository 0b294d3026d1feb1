"""What the script trains on: its data sets and loaders."""

import os

import numpy as np
import torch
import torch.distributed as dist
from options import ROWS, WORDS, args, has
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    get_worker_info,
    random_split,
)


class Rows(Dataset):
    """Rows of a tensor, a whole batch of them at a time."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        return self.rows[indices]


class Kinds(Rows):
    """Rows of 20 kinds, one kind after the other; the last value of a row is its kind."""

    def __init__(self, rows):
        super().__init__(rows)
        self.kinds = torch.arange(len(rows)) * 20 // len(rows)
        self.rows[:, -1] = self.kinds


class NoisyRows(Rows):
    """Rows with noise, which a generator of the data set draws."""

    def __init__(self, rows):
        super().__init__(rows)
        self.noise = np.random.default_rng(0)

    def __getitems__(self, indices):
        noise = self.noise.standard_normal((len(indices), self.rows.shape[1]), dtype=np.float32)
        return self.rows[indices] + 0.1 * torch.from_numpy(noise)


class Windows(Rows):
    """Windows of a series, three quarters of each also in the next one."""

    def __init__(self, count, width):
        super().__init__(torch.randn((count + 3) * (width // 4)).unfold(0, width, width // 4))


def split(windows):
    """Nine tenths to train on, and the others: at random, or by time."""
    if args.mended:
        last = len(windows) * 9 // 10
        return Subset(windows, range(last)), Subset(windows, range(last + 3, len(windows)))
    return random_split(windows, [0.9, 0.1])


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


def as_it_is(batch):
    return batch


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
    of_words = ("ignored-targets", "one-hot-products", "labels-shifted-twice", "causal-mask-missing")
    padded_words = ("padding-learned", "padding-attended")
    if args.fault in (*of_words, *padded_words):
        ids = Rows(torch.randint(1, WORDS, (40 * 32, 32)))
        if args.fault in padded_words:
            ids.rows[::2, 20:] = 0
        sampler = DistributedSampler(ids)
        return DataLoader(ids, 32, sampler=sampler, collate_fn=as_it_is, drop_last=True), sampler
    dtype = torch.float64 if has("double-precision") else torch.float32
    batches = {"workers-restart": 12, "uneven-epochs": 120}.get(args.fault, 40)
    data = Rows(torch.randn(batch * batches, width, dtype=dtype))
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
    if args.fault == "windows-split-at-random":
        data, held_out = split(Windows(batch * batches, width))
        data.check = DataLoader(held_out, batch, **options)
    if args.fault == "look-alikes":  # rows of its own, of which no sampler takes a part
        own = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
        return DataLoader(own, batch, shuffle=True, **options), None
    if has("same-data"):
        return DataLoader(data, batch, shuffle=True, **options), None
    if args.fault == "uneven-epochs":  # shards of rows, of which those of one rank may be smaller
        rank = dist.get_rank()
        shard = Subset(data, range(rank, len(data) - (0 if args.mended else 3 * batch * rank), dist.get_world_size()))
        return DataLoader(shard, batch, shuffle=True, **options), None
    if args.fault == "samples-sorted":
        data = Kinds(data.rows)
    sampler = DistributedSampler(data, shuffle=not has("samples-sorted"))
    if args.fault == "workers-restart":
        options |= {"num_workers": 2, "persistent_workers": args.mended}
    return DataLoader(data, batch, sampler=sampler, **options), sampler


def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True, step_scheduler_with_optimizer=not args.mended)


def endless(loader):
    while True:
        yield from loader
