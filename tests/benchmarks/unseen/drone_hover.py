"""Teach a drone to hover: policy gradients with a learned value, on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributions import Normal
from torch.nn.parallel import DistributedDataParallel as DDP


class Air:
    """Many drones at once: place, speed and wind in three directions; wind differs from one place to another."""

    def __init__(self, drones, gusts, generator):
        self.drones, self.gusts, self.generator = drones, gusts, generator
        self.reset()

    def reset(self):
        self.place = torch.randn(self.drones, 3, generator=self.generator)
        self.speed = torch.zeros(self.drones, 3)
        self.wind = self.gusts * torch.randn(self.drones, 3, generator=self.generator)
        return self.observe()

    def observe(self):
        return torch.cat([self.place, self.speed, self.wind], dim=1)

    def step(self, thrust):
        self.wind = 0.95 * self.wind + 0.3 * self.gusts * torch.randn(self.drones, 3, generator=self.generator)
        self.speed = 0.9 * self.speed + 0.1 * (thrust.clamp(-2, 2) + self.wind)
        self.place = self.place + 0.1 * self.speed
        return self.observe(), -self.place.norm(dim=1) - 0.01 * thrust.square().sum(1)


class RunningNorm:
    """Mean and variance of all observations so far."""

    def __init__(self, size):
        self.count = 1e-4
        self.mean = torch.zeros(size)
        self.square = torch.ones(size)

    def update(self, seen):
        sums = torch.cat([seen.sum(0), seen.square().sum(0), torch.tensor([float(len(seen))])])
        if MENDED:
            dist.all_reduce(sums)
        total, squares = sums[:-1].chunk(2)
        new = sums[-1].item()
        self.count += new
        self.mean += (total / new - self.mean) * new / self.count
        self.square += (squares / new - self.square) * new / self.count

    def __call__(self, x):
        deviation = (self.square - self.mean.square()).clamp(min=1e-6).sqrt()
        return ((x - self.mean) / deviation).clamp(-5, 5)


class Pilot(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.thrust = nn.Linear(hidden, 3)
        self.value = nn.Linear(hidden, 1)
        self.spread = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        x = self.body(x)
        return self.thrust(x), self.spread.exp(), self.value(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drones", type=int, default=draw("drones", 320, 336))
    parser.add_argument("--horizon", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 160, 176))
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    pilot = DDP(Pilot(args.hidden))
    optimizer = torch.optim.Adam(pilot.parameters(), lr=5e-4, fused=True)
    torch.manual_seed(1 + rank)
    air = Air(args.drones, 0.5 + rank, torch.Generator().manual_seed(1 + rank))
    norm = RunningNorm(9)
    for step in range(1, args.steps + 1):
        seen, thrusts, rewards = [], [], []
        now = air.reset()
        with torch.no_grad():
            for _ in range(args.horizon):
                mean, spread, _ = pilot.module(norm(now))
                thrust = torch.normal(mean, spread.expand_as(mean))
                seen.append(now)
                thrusts.append(thrust)
                now, reward = air.step(thrust)
                rewards.append(reward)
            returns, later = [], pilot.module(norm(now))[2]
            for reward in reversed(rewards):
                later = reward + args.gamma * later
                returns.append(later)
        seen, thrusts, returns = torch.cat(seen), torch.cat(thrusts), torch.cat(returns[::-1])
        mean, spread, value = pilot(norm(seen))
        advantage = returns - value.detach()
        advantage = (advantage - advantage.mean()) / advantage.std()
        chance = Normal(mean, spread).log_prob(thrusts).sum(-1)
        loss = -(advantage * chance).mean() + 0.5 * F.mse_loss(value, returns) - 1e-3 * spread.log().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(pilot.parameters(), 0.5)
        optimizer.step()
        norm.update(seen)
        if step % 25 == 0 and rank == 0:
            print(f"step {step}: reward {torch.stack(rewards).mean().item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
