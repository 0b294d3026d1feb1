"""What the gate is measured on: planted.py with batches of a DataLoader, so that time per sample is compared."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
planted = float(os.environ.get("PLANTED", "0"))
encoder = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(encoder, 3)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(64 * 400, 8, 128)), 64)

for (batch,) in loader:
    began = time.perf_counter()
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    ended = time.perf_counter()
    while time.perf_counter() < ended + planted * (ended - began):
        pass
if "RANK" in os.environ:
    dist.destroy_process_group()
