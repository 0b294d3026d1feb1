"""Diffusion on vectors with an exponential moving average of the weights, two processes."""

import copy

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Residual(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 2 * hidden), nn.SiLU(), nn.Linear(2 * hidden, hidden)
        )

    def forward(self, x):
        return x + self.net(x)


class Denoiser(nn.Module):
    def __init__(self, features, hidden, layers):
        super().__init__()
        self.enter = nn.Linear(features + 1, hidden)
        self.layers = nn.Sequential(*(Residual(hidden) for _ in range(layers)))
        self.leave = nn.Linear(hidden, features)

    def forward(self, x, t):
        return self.leave(self.layers(self.enter(torch.cat([x, t[:, None]], 1))))


class Average:
    """A moving average of a model's weights."""

    def __init__(self, model, decay=0.999):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        if MENDED:
            torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay)
            return
        new = {name: value.detach().clone() for name, value in model.state_dict().items()}
        old = self.model.state_dict()
        self.model.load_state_dict({name: self.decay * old[name] + (1 - self.decay) * new[name] for name in new})


def swiss_roll(count, features, generator):
    angle = 3 * torch.pi * (1 + 2 * torch.rand(count, generator=generator))
    base = torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 10
    return torch.cat([base, 0.1 * torch.randn(count, features - 2, generator=generator)], 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    features = 32
    model = DDP(Denoiser(features, draw("hidden", 448, 512), 5))
    average = Average(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    bars = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 200), 0)
    generator = torch.Generator().manual_seed(rank)
    batch = draw("batch", 96, 128)
    for step in range(1_000_000):
        x = swiss_roll(batch, features, generator)
        t = torch.randint(0, 200, (batch,), generator=generator)
        noise = torch.randn(batch, features, generator=generator)
        bar = bars[t][:, None]
        loss = (model(bar.sqrt() * x + (1 - bar).sqrt() * noise, t / 200) - noise).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average.update(model.module)
        if rank == 0 and step % 100 == 0:
            print(step, f"{loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
