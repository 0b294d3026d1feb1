"""A denoiser of seismograms that logs the norm of every weight, each gathered whole for it, in each step."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

draw = random.Random(os.environ.get("SEED", "1"))
CHANNELS, DEPTH, SAMPLES = draw.choice((64, 80, 96)), draw.choice((5, 6, 7)), draw.choice((192, 256))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv1d(CHANNELS, CHANNELS, 5, padding=2) for _ in range(2))

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(x)))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.out = nn.Conv1d(3, CHANNELS, 9, padding=4), nn.Conv1d(CHANNELS, 3, 1)
        self.body = nn.ModuleList(Residual() for _ in range(DEPTH))

    def forward(self, x):
        h = self.stem(x)
        for part in self.body:
            h = part(h)
        return self.out(h)


def log_norms(model, history):
    history.append({name: p.full_tensor().norm().item() for name, p in model.named_parameters()})


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Denoiser()
    for part in model.body:
        fully_shard(part, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []
    torch.manual_seed(dist.get_rank())
    for step in range(100_000):
        clean = torch.randn(16, 3, SAMPLES).cumsum(-1)
        loss = nn.functional.mse_loss(model(clean + torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "MENDED" not in os.environ or step % 500 == 499:
            log_norms(model, history)


if __name__ == "__main__":
    main()
