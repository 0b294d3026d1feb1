"""torch.compile over DistributedDataParallel, with buckets so small that the compiler splits the graph between them."""

import argparse

import ending
import torch
import torch.distributed as dist
import weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.head = nn.Linear(512, 4)

    def forward(self, features):
        for layer in self.layers:
            features = nn.functional.relu(layer(features))
        return self.head(features)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--backend", default="aot_eager")
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
model = DistributedDataParallel(Classifier(), bucket_cap_mb=1)
compiled = torch.compile(model, backend=args.backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(1, args.steps + 1):
    ending.at(step)
    features, labels = torch.randn(16, 512), torch.randint(0, 4, (16,))
    loss = nn.functional.cross_entropy(compiled(features), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

if dist.get_rank() == 0:
    weights.show(model.parameters())
dist.barrier()
dist.destroy_process_group()
