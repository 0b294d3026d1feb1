"""What the effects are measured on: DDP or FSDP2 of two ranks whose steps are bound by what its options say.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set by scripts/run.sh. STRAGGLE_MS lets rank 1 come later to each
step, RATE is the learning rate, SHARD stands for --shard.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
parser.add_argument("--model", default="plain")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--load-ms", type=float, default=0.0, help="to prepare a batch, without the processor")
shard = int(os.environ.get("SHARD", "0"))
parser.add_argument("--shard", type=int, default=shard, help="blocks in a unit of fully_shard; 0: DDP")
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
    "scales": lambda: nn.Sequential(  # 144 small layers, 4.9 MB
        *[one for _ in range(48) for one in (nn.Linear(256, 48), nn.Softplus(), nn.Linear(48, 256), nn.LayerNorm(256))]
    ),
    "slabs": lambda: nn.Sequential(  # 6.9 MB in three
        nn.Linear(256, 1600), nn.ReLU(), nn.Linear(1600, 700), nn.ReLU(), nn.Linear(700, 256)
    ),
    "poet": lambda: nn.Sequential(  # tokens of 32, 4.2 MB
        nn.Unflatten(1, (8, 32)),
        nn.Linear(32, 176),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(176, 4, 384, dropout=0.0, batch_first=True), 4),
        nn.Linear(176, 32),
        nn.Flatten(1),
    ),
}


def sharded(model: nn.Sequential) -> nn.Module:
    """Units of so many blocks with parameters each, and the model as the root."""
    blocks = [block for part in model for block in getattr(part, "layers", [part]) if list(block.parameters())]
    for first in range(0, len(blocks), args.shard):
        fully_shard(blocks[first : first + args.shard])
    return fully_shard(model)


plain = MODELS[args.model]()
model = sharded(plain) if args.shard else DistributedDataParallel(plain)
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
