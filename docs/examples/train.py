import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))

data = TensorDataset(torch.randn(16384, 256), torch.randint(0, 10, (16384,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=64, sampler=sampler)
layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), *layers, nn.Linear(1024, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
loss_of = nn.CrossEntropyLoss()
accumulate = 4

for epoch in range(4):
    sampler.set_epoch(epoch)
    for number, (inputs, labels) in enumerate(loader):
        loss = loss_of(model(inputs), labels) / accumulate
        loss.backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
