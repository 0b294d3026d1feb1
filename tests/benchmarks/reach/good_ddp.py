"""Nothing to gain: two ranks whose compute hides most of what they send."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512  # drawn: 448, 512, 576

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
torch.set_num_threads(1)
layers = [part for _ in range(4) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
model = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for _ in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(512, WIDTH)).square().mean().backward()
    optimizer.step()
