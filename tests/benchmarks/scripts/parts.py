"""What the scripts of the advice benchmark have in common.

SEED draws sizes and how bad a fault is, FAULTS names those that are planted, MENDED those of them that are mended, and
MODEL the network.
"""

import gc
import os
import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
MODEL = os.environ.get("MODEL", "mlp")
FAULTS, MENDED = (set(filter(None, os.environ.get(name, "").split("+"))) for name in ("FAULTS", "MENDED"))

drawn = random.Random(int(os.environ.get("SEED", "0")))
WIDTH = drawn.choice((192, 256, 320))
DEPTH = drawn.randint(4, 6)
ROWS = drawn.choice((384, 512, 640))  # of a batch of the mlp
BADLY = drawn.uniform(0.6, 1.0)
STEPS = 4000
ONE_BY_ONE = {"storage", "no-workers", "slow-transform", "slow-collate", "late-input"}  # faults of single samples


def has(fault):
    return fault in FAULTS - MENDED


def begin():
    torch.manual_seed(drawn.randrange(10**6))
    torch.set_num_threads(1)
    if "gc" in FAULTS:
        KEPT.extend({"word": str(n), "ids": [n]} for n in range(200_000))  # a vocabulary, as objects
    if has("slower-compute"):
        pin()


KEPT = []


def pin():
    """Each rank has a core; that of rank 1 has something else to do as well."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[RANK % len(cores)]})
    if RANK == 1:
        busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
        subprocess.Popen([sys.executable, "-S", "-c", busy], env={"PATH": os.environ["PATH"]})


def network():
    if MODEL == "mlp":
        return layers(WIDTH, DEPTH)
    if MODEL == "wide":
        return layers(512, 4)
    if MODEL == "many":
        return nn.Sequential(*[one for _ in range(60) for one in (nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH))])
    if MODEL == "shared":  # one layer over and over: much to compute, and few gradients
        return nn.Sequential(*[nn.Linear(64, 64), nn.ReLU()] * 30, nn.Linear(64, 64))
    if MODEL == "blocks":
        count = 500 if "unfused" in FAULTS else 60
        return nn.Sequential(*[one for _ in range(count) for one in (nn.Linear(16, 16), nn.LayerNorm(16))])
    if MODEL == "conv":
        return nn.Sequential(
            *[nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()],
            *[nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU()],
            *[nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48 * 16, 100)],
        )
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, DEPTH // 2, enable_nested_tensor=False)


def layers(width, count):
    return nn.Sequential(*[one for _ in range(count) for one in (nn.Linear(width, width), nn.ReLU())])


def model():
    made = network()
    if "buffers" in FAULTS:  # a table that is the same on all ranks
        made.register_buffer("positions", torch.randn(int(BADLY * 2**20)))
    return made.double() if has("fp64") else made


def shape():
    if MODEL == "conv":
        return (3, 16, 16)
    if MODEL == "transformer":
        return (16, 128)
    return ({"blocks": 16, "wide": 512, "shared": 64}.get(MODEL, WIDTH),)


def batch_size():
    if has("tiny-batch"):
        return int(4 + 8 * BADLY)
    if FAULTS & ONE_BY_ONE:
        return 128
    return {"mlp": ROWS, "conv": 48, "transformer": 48, "blocks": 64, "many": ROWS, "wide": 2048, "shared": 2048}[MODEL]


class Rows(Dataset):
    """Rows of a tensor, a whole batch of them at a time."""

    def __init__(self, count):
        dtype = torch.float64 if has("fp64") else torch.float32
        self.rows = torch.randn(min(count, 4096), *shape(), dtype=dtype)
        self.count = count

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        return self.rows[torch.tensor(indices) % len(self.rows)]


class Samples(Dataset):
    """Samples that are read, decoded and augmented one by one."""

    def __init__(self, count):
        self.rows = torch.randn(min(count, 4096), *shape())
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        row = self.rows[at % len(self.rows)]
        if has("storage") or (has("late-input") and RANK == 1):
            time.sleep(BADLY * 0.3e-3)  # of an object store
        if "no-workers" in FAULTS or has("slow-transform"):
            row = augmented(row, int(BADLY * 30))
        return row


def augmented(row, times):
    for _ in range(times):
        row = row + torch.randn_like(row) * 0.01
    return row


def as_it_is(batch):
    return batch


def collate(samples):
    if has("slow-collate"):
        return torch.tensor([[float(f"{one:.6g}") for one in row.tolist()] for row in samples])  # as if parsed
    return torch.stack(samples)


def dataset():
    return (Samples if FAULTS & ONE_BY_ONE else Rows)(batch_size() * STEPS * WORLD)


def collating(data):
    return collate if isinstance(data, Samples) else as_it_is


def workers():
    if "no-workers" in FAULTS:
        return 0 if has("no-workers") else 1
    return 1 if "storage" in FAULTS else 0


def loader():
    data = dataset()
    parted = WORLD > 1 and not has("no-sampler")
    sampler = DistributedSampler(data) if parted else None
    return DataLoader(
        data,
        batch_size(),
        sampler=sampler,
        shuffle=sampler is None,
        num_workers=workers(),
        persistent_workers=workers() > 0,
        collate_fn=collating(data),
        drop_last=True,
    )


def ddp_options():
    options = {}
    if has("small-buckets"):
        options["bucket_cap_mb"] = round(0.02 + 0.04 * (1 - BADLY), 3)
    if has("large-buckets"):
        options["bucket_cap_mb"] = 200
    if has("find-unused"):
        options["find_unused_parameters"] = True
    if "buffers" in MENDED:
        options["broadcast_buffers"] = False
    return options


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=not has("unfused"))


def micro_batches():
    return 4 if "no-no-sync" in FAULTS else 1


def before_forward(batch):
    """What a straggler does to its step."""
    if has("more-work") and RANK == 1:
        return torch.cat([batch, batch[: int(BADLY * len(batch))]])
    if has("straggler") and RANK == 1:
        time.sleep(0.04 * BADLY)
    return batch


def after_step():
    """What some do to save memory."""
    if has("gc"):
        gc.collect()


def gather(metrics):
    """What a logger that is asked in each step does: a few figures of all ranks, one after the other."""
    for name, value in metrics.items():
        everyone = [None] * WORLD
        dist.all_gather_object(everyone, {name: value})
    dist.barrier()


def objective(outputs):
    return outputs.float().square().mean()
