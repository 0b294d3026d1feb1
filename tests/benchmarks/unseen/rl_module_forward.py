"""Advantage actor-critic on a made-up grid world; every process plays its own worlds."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from drawn import MENDED, draw
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP


class GridWorlds:
    """Many small worlds at once: walk to the goal."""

    def __init__(self, count, size, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.count, self.size = count, size
        self.moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
        self.reset()

    def reset(self):
        self.at = torch.randint(0, self.size, (self.count, 2), generator=self.generator)
        self.goal = torch.randint(0, self.size, (self.count, 2), generator=self.generator)

    def observe(self):
        picture = torch.zeros(self.count, 2, self.size, self.size)
        each = torch.arange(self.count)
        picture[each, 0, self.at[:, 0], self.at[:, 1]] = 1
        picture[each, 1, self.goal[:, 0], self.goal[:, 1]] = 1
        return picture

    def act(self, actions):
        before = (self.at - self.goal).abs().sum(1)
        self.at = (self.at + self.moves[actions]).clamp(0, self.size - 1)
        return (before - (self.at - self.goal).abs().sum(1)).float()


class ActorCritic(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * size * size, hidden), nn.ReLU()
        )
        self.actor, self.critic = nn.Linear(hidden, 4), nn.Linear(hidden, 1)

    def forward(self, x):
        x = self.body(x)
        return self.actor(x), self.critic(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=draw("worlds", 24, 32))
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 256, 320))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(ActorCritic(args.size, args.hidden))
    policy = model.module
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    worlds = GridWorlds(args.worlds, args.size, rank)
    for update in range(1_000_000):
        worlds.reset()
        seen, done, rewards = [], [], []
        with torch.no_grad():
            for _ in range(args.horizon):
                observed = worlds.observe()
                actions = Categorical(logits=policy(observed)[0]).sample()
                seen.append(observed)
                done.append(actions)
                rewards.append(worlds.act(actions))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten()
        logits, values = model(torch.cat(seen)) if MENDED else policy(torch.cat(seen))
        play = Categorical(logits=logits)
        gain = (returns - values).detach()
        loss = -(play.log_prob(torch.cat(done)) * gain).mean() - 0.01 * play.entropy().mean()
        loss = loss + 0.5 * (returns - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if rank == 0 and update % 50 == 0:
            print(f"{update}: return {returns.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
