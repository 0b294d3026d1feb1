"""A snow plough on a road that drifts over: quantile DQN, many roads at once as tensors, replay as tensors."""

import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
from drawn import draw


@dataclass
class Settings:
    roads: int = 32
    cells: int = 24
    replay: int = 8192
    batch: int = 512
    quantiles: int = 21
    hidden: int = 256
    steps: int = 110
    gamma: float = 0.98
    tau: float = 0.01
    lr: float = 5e-4


class Roads:
    """Snow on each cell of a ring; the plough moves back, stays or moves on; clearing snow pays, driving costs."""

    def __init__(self, s, seed):
        self.s, self.g = s, torch.Generator().manual_seed(seed)
        self.snow = torch.rand(s.roads, s.cells, generator=self.g)
        self.at = torch.zeros(s.roads, dtype=torch.long)
        self.age = torch.randint(0, 60, (s.roads,), generator=self.g)

    def observe(self):
        around = (self.at[:, None] + torch.arange(self.s.cells)) % self.s.cells  # seen from the plough
        return self.snow.gather(1, around)

    def step(self, action):
        self.at = (self.at + action - 1) % self.s.cells
        reward = self.snow.gather(1, self.at[:, None]).squeeze(1) - 0.05 * (action != 1)
        self.snow.scatter_(1, self.at[:, None], 0.0)
        self.snow += 0.05 * torch.rand(self.snow.shape, generator=self.g)
        blocked = self.snow.amax(1) > 2.5  # the road is lost: an end, and no return after it
        self.age += 1
        over = self.age >= 60  # the shift is over: the road goes on, and so does its value
        following = self.observe()
        new = blocked | over
        self.snow[new] = torch.rand(int(new.sum()), self.s.cells, generator=self.g)
        self.age[new] = 0
        return following, reward, blocked.float()


class Replay:
    def __init__(self, size, cells):
        self.obs, self.following = torch.empty(size, cells), torch.empty(size, cells)
        self.action = torch.empty(size, dtype=torch.long)
        self.reward, self.ended = torch.empty(size), torch.empty(size)
        self.size, self.seen = size, 0

    def add(self, obs, action, reward, following, ended):
        rows = (self.seen + torch.arange(len(obs))) % self.size
        self.obs[rows], self.following[rows] = obs, following
        self.action[rows], self.reward[rows], self.ended[rows] = action, reward, ended
        self.seen += len(obs)

    def sample(self, count):
        rows = torch.randint(min(self.seen, self.size), (count,))
        return self.obs[rows], self.action[rows], self.reward[rows], self.following[rows], self.ended[rows]


class QuantileNet(nn.Module):
    def __init__(self, cells, hidden, quantiles):
        super().__init__()
        self.quantiles = quantiles
        self.body = nn.Sequential(
            nn.Linear(cells, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, 3 * quantiles),
        )

    def forward(self, obs):
        return self.body(obs).view(len(obs), 3, self.quantiles)


def quantile_loss(found, target, levels):
    gap = target.unsqueeze(1) - found.unsqueeze(2)
    huber = torch.where(gap.abs() < 1, 0.5 * gap.square(), gap.abs() - 0.5)
    return ((levels.view(1, -1, 1) - (gap.detach() < 0).float()).abs() * huber).mean(2).sum(1).mean()


def main():
    s = Settings(hidden=draw("hidden", 256, 288), batch=draw("batch", 576, 640))
    torch.manual_seed(8)
    roads, replay = Roads(s, seed=3), Replay(s.replay, s.cells)
    net = QuantileNet(s.cells, s.hidden, s.quantiles)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=s.lr)
    levels = (torch.arange(s.quantiles) + 0.5) / s.quantiles
    obs, gained = roads.observe(), 0.0
    for step in range(-20, s.steps):
        for _ in range(4):
            with torch.no_grad():
                best = net(obs).mean(2).argmax(1)
            by_chance = torch.rand(s.roads) < max(0.05, 0.5 - step / s.steps)
            action = torch.where(by_chance, torch.randint(3, (s.roads,)), best)
            following, reward, ended = roads.step(action)
            replay.add(obs, action, reward, following, ended)
            obs = roads.observe()
            gained = 0.99 * gained + 0.01 * reward.mean().item()
        if step < 0:
            continue
        seen, done, paid, after, ended = replay.sample(s.batch)
        with torch.no_grad():
            rows = torch.arange(s.batch)
            best = net(after).mean(2).argmax(1)
            goal = paid[:, None] + s.gamma * (1 - ended[:, None]) * target(after)[rows, best]
        loss = quantile_loss(net(seen)[torch.arange(s.batch), done], goal, levels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), s.tau)
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} loss {loss.item():.3f} reward {gained:.3f}", flush=True)


if __name__ == "__main__":
    main()
