"""What the effects are measured on: DDP of two ranks whose steps are bound by what its options say.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set by scripts/run.sh. STRAGGLE_MS lets rank 1 come later to each
step, RATE is the learning rate.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
parser.add_argument("--model", default="plain")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--load-ms", type=float, default=0.0, help="to prepare a batch, without the processor")
args = parser.parse_args()


class Samples(Dataset):
    """Random ones, the same each time."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(args.load_ms / args.batch / 1e3)
        return torch.randn(256, generator=torch.Generator().manual_seed(at))


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
MODELS = {
    "plain": lambda: nn.Sequential(*[one for _ in range(9) for one in (nn.Linear(256, 256), nn.ReLU())]),  # 2.4 MB
    "many": lambda: nn.Sequential(  # 120 small layers, 2.0 MB
        *[one for _ in range(60) for one in (nn.Linear(256, 16), nn.Linear(16, 256), nn.LayerNorm(256))]
    ),
    "large": lambda: nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256)),  # 4.2 MB in two
    "transformer": lambda: nn.Sequential(  # tokens of 32, 1.7 MB
        nn.Unflatten(1, (8, 32)),
        nn.Linear(32, 128),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True), 3),
        nn.Linear(128, 32),
        nn.Flatten(1),
    ),
    "deep": lambda: nn.Sequential(  # 3.3 MB
        nn.Linear(256, 320),
        nn.ReLU(),
        *[one for _ in range(6) for one in (nn.Linear(320, 320), nn.ReLU())],
        nn.Linear(320, 256),
    ),
    "blocks": lambda: nn.Sequential(  # 135 small layers, 2.4 MB
        *[one for _ in range(45) for one in (nn.Linear(256, 24), nn.Linear(24, 256), nn.LayerNorm(256))]
    ),
    "wide": lambda: nn.Sequential(  # 4.2 MB in three
        nn.Linear(256, 1200), nn.ReLU(), nn.Linear(1200, 512), nn.ReLU(), nn.Linear(512, 256)
    ),
    "encoder": lambda: nn.Sequential(  # tokens of 16, 1.5 MB
        nn.Unflatten(1, (16, 16)),
        nn.Linear(16, 96),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(96, 4, 288, dropout=0.0, batch_first=True), 4),
        nn.Linear(96, 16),
        nn.Flatten(1),
    ),
    "tower": lambda: nn.Sequential(  # 105 small layers, 2.7 MB
        *[one for _ in range(35) for one in (nn.Linear(256, 36), nn.ReLU(), nn.Linear(36, 256), nn.LayerNorm(256))]
    ),
    "slab": lambda: nn.Sequential(  # 4.0 MB in three
        nn.Linear(256, 1000), nn.ReLU(), nn.Linear(1000, 600), nn.ReLU(), nn.Linear(600, 256)
    ),
    "former": lambda: nn.Sequential(  # tokens of 32, 1.5 MB
        nn.Unflatten(1, (8, 32)),
        nn.Linear(32, 112),
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(112, 4, 336, dropout=0.0, batch_first=True, norm_first=True),
            3,
            enable_nested_tensor=False,
        ),
        nn.Linear(112, 32),
        nn.Flatten(1),
    ),
    "stack": lambda: nn.Sequential(  # 181 small layers, 6.4 MB
        nn.Linear(256, 320),
        *[one for _ in range(60) for one in (nn.Linear(320, 40), nn.GELU(), nn.Linear(40, 320), nn.LayerNorm(320))],
        nn.Linear(320, 256),
    ),
    "bulk": lambda: nn.Sequential(  # 6.2 MB in three
        nn.Linear(256, 1536), nn.ReLU(), nn.Linear(1536, 640), nn.ReLU(), nn.Linear(640, 256)
    ),
    "attending": lambda: nn.Sequential(  # tokens of 32, 4.2 MB
        nn.Unflatten(1, (8, 32)),
        nn.Linear(32, 192),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(192, 6, 512, dropout=0.0, batch_first=True), 3),
        nn.Linear(192, 32),
        nn.Flatten(1),
    ),
    "chain": lambda: nn.Sequential(  # 135 small layers, 5.0 MB
        *[one for _ in range(45) for one in (nn.Linear(256, 54), nn.Tanh(), nn.Linear(54, 256), nn.LayerNorm(256))]
    ),
    "ladder": lambda: nn.Sequential(  # 120 small layers, 3.8 MB
        *[one for _ in range(40) for one in (nn.Linear(256, 45), nn.SiLU(), nn.Linear(45, 256), nn.LayerNorm(256))]
    ),
    "rungs": lambda: nn.Sequential(  # 108 small layers, 4.9 MB
        *[one for _ in range(36) for one in (nn.Linear(256, 64), nn.Hardswish(), nn.Linear(64, 256), nn.LayerNorm(256))]
    ),
    "mass": lambda: nn.Sequential(  # 6.0 MB in three
        nn.Linear(256, 1792), nn.ReLU(), nn.Linear(1792, 512), nn.ReLU(), nn.Linear(512, 256)
    ),
    "reader": lambda: nn.Sequential(  # tokens of 32, 4.0 MB
        nn.Unflatten(1, (8, 32)),
        nn.Linear(32, 160),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(160, 5, 448, dropout=0.0, batch_first=True), 4),
        nn.Linear(160, 32),
        nn.Flatten(1),
    ),
    "beads": lambda: nn.Sequential(  # 126 small layers, 4.6 MB
        *[one for _ in range(42) for one in (nn.Linear(256, 52), nn.ELU(), nn.Linear(52, 256), nn.LayerNorm(256))]
    ),
    "trunk": lambda: nn.Sequential(  # 6.3 MB in three
        nn.Linear(256, 1300), nn.ReLU(), nn.Linear(1300, 800), nn.ReLU(), nn.Linear(800, 256)
    ),
    "scribe": lambda: nn.Sequential(  # tokens of 16, 3.3 MB
        nn.Unflatten(1, (16, 16)),
        nn.Linear(16, 144),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(144, 6, 432, dropout=0.0, batch_first=True), 4),
        nn.Linear(144, 16),
        nn.Flatten(1),
    ),
}
model = DistributedDataParallel(MODELS[args.model]())
optimizer = torch.optim.AdamW(model.parameters(), lr=float(os.environ.get("RATE", "1e-3")))
late_s = float(os.environ.get("STRAGGLE_MS", "0")) / 1e3 if dist.get_rank() == 1 else 0.0

for micro, batch in enumerate(DataLoader(Samples(), args.batch)):
    if micro % args.accumulate == 0:
        time.sleep(late_s)
    loss = (model(batch) - batch).square().mean() / args.accumulate
    loss.backward()
    if (micro + 1) % args.accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
    if micro == 400 * args.accumulate:
        break
dist.barrier()
dist.destroy_process_group()
