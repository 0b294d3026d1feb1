"""Advantage actor-critic on many small mazes that are stepped together."""

from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import draw, mended
from torch import nn
from torch.distributions import Categorical


@dataclass
class Config:
    mazes: int = draw("mazes", 14, 16)
    side: int = 12
    horizon: int = 40
    width: int = draw("width", 208, 224)
    gamma: float = 0.99
    lam: float = 0.95
    updates: int = 250


class Mazes:
    """Walk to the goal; walls hurt a little."""

    def __init__(self, count, side):
        self.count, self.side = count, side
        self.walls = (torch.rand(count, side, side) < 0.2).float()
        self.moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
        self.at = torch.zeros(count, 2, dtype=torch.long)
        self.goal = torch.zeros(count, 2, dtype=torch.long)
        self.reset(torch.ones(count, dtype=torch.bool))

    def reset(self, which):
        self.at[which] = torch.randint(0, self.side, (int(which.sum()), 2))
        self.goal[which] = torch.randint(0, self.side, (int(which.sum()), 2))

    def picture(self, maze):
        """Walls, where one is, and where to go."""
        seen = torch.zeros(3, self.side, self.side)
        seen[0] = self.walls[maze]
        seen[1, self.at[maze, 0], self.at[maze, 1]] = 1
        seen[2, self.goal[maze, 0], self.goal[maze, 1]] = 1
        return seen.flatten()

    def observe(self):
        if mended(2):
            rows = torch.arange(self.count)
            seen = torch.zeros(self.count, 3, self.side, self.side)
            seen[:, 0] = self.walls
            seen[rows, 1, self.at[:, 0], self.at[:, 1]] = 1
            seen[rows, 2, self.goal[:, 0], self.goal[:, 1]] = 1
            return seen.flatten(1)
        return torch.stack([self.picture(maze) for maze in range(self.count)])

    def step(self, actions):
        self.at = (self.at + self.moves[actions]).clamp(0, self.side - 1)
        done = (self.at == self.goal).all(1)
        hurt = self.walls[torch.arange(self.count), self.at[:, 0], self.at[:, 1]]
        rewards = done.float() - 0.05 * hurt - 0.01
        done = done | (torch.rand(self.count) < 0.01)
        self.reset(done)
        return self.observe(), rewards, done.float()


class ActorCritic(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, x):
        x = self.body(x)
        return self.actor(x), self.critic(x).squeeze(-1)


class Rollout:
    """What was seen and done since the last update."""

    def __init__(self):
        self.columns = defaultdict(list)

    def add(self, **values):
        for name, value in values.items():
            self.columns[name].append(value)

    def stacked(self):
        return {name: torch.stack(values) for name, values in self.columns.items()}


def advantages(rewards, values, dones, last, config):
    """Generalised advantage estimates."""
    following = torch.cat([values[1:], last.unsqueeze(0)])
    found = torch.zeros_like(rewards)
    if mended(1):
        deltas = rewards + config.gamma * following * (1 - dones) - values
        carried = torch.zeros_like(last)
        for t in reversed(range(len(rewards))):
            carried = deltas[t] + config.gamma * config.lam * (1 - dones[t]) * carried
            found[t] = carried
        return found
    for maze in range(rewards.shape[1]):
        carried = 0.0
        for t in reversed(range(rewards.shape[0])):
            delta = rewards[t, maze] + config.gamma * following[t, maze] * (1 - dones[t, maze]) - values[t, maze]
            carried = delta + config.gamma * config.lam * (1 - dones[t, maze]) * carried
            found[t, maze] = carried
    return found


def collect(mazes, model, seen, config):
    rollout = Rollout()
    for _ in range(config.horizon):
        with torch.no_grad():
            logits, values = model(seen)
        actions = Categorical(logits=logits).sample()
        following, rewards, dones = mazes.step(actions)
        rollout.add(seen=seen, actions=actions, rewards=rewards, values=values, dones=dones)
        seen = following
    return rollout.stacked(), seen


def main():
    config = Config()
    torch.manual_seed(5)
    mazes = Mazes(config.mazes, config.side)
    model = ActorCritic(3 * config.side**2, config.width)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    seen = mazes.observe()
    for update in range(1, config.updates + 1):
        rollout, seen = collect(mazes, model, seen, config)
        with torch.no_grad():
            last = model(seen)[1]
        gain = advantages(rollout["rewards"], rollout["values"], rollout["dones"], last, config)
        wanted = gain + rollout["values"]
        logits, values = model(rollout["seen"])
        chosen = Categorical(logits=logits)
        of_policy = -(chosen.log_prob(rollout["actions"]) * gain).mean()
        loss = of_policy + 0.5 * F.mse_loss(values, wanted) - 0.01 * chosen.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if update % 25 == 0:
            print(f"{update}: reward {rollout['rewards'].mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
