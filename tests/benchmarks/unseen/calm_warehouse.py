"""Robots in a warehouse learn by advantage actor-critic; all of them move at once."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn


@dataclass
class Config:
    robots: int = draw("robots", 224, 256)
    horizon: int = 16
    width: int = draw("width", 112, 128)
    gamma: float = 0.95
    entropy: float = 0.01
    lr: float = 5e-4
    steps: int = 300


class Warehouse:
    """Fetch what is at the goal; each move costs a little."""

    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])

    def __init__(self, robots, side=12):
        self.side = side
        self.at = torch.randint(0, side, (robots, 2))
        self.goal = torch.randint(0, side, (robots, 2))

    def see(self):
        return torch.cat([self.at, self.goal, self.goal - self.at], 1).float() / self.side

    def step(self, actions):
        self.at = (self.at + self.moves[actions]).clamp(0, self.side - 1)
        there = (self.at == self.goal).all(1)
        self.goal = torch.where(there.unsqueeze(1), torch.randint_like(self.goal, self.side), self.goal)
        return there.float() - 0.02


class Policy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 5), nn.Linear(width, 1)

    def forward(self, seen):
        x = self.body(seen)
        return self.actor(x), self.critic(x).squeeze(-1)


@torch.no_grad()
def collect(warehouse, policy, config):
    rows = []
    for _ in range(config.horizon):
        seen = warehouse.see()
        actions = torch.distributions.Categorical(logits=policy(seen)[0]).sample()
        rows.append((seen, actions, warehouse.step(actions)))
    seen, actions, rewards = (torch.stack(column) for column in zip(*rows, strict=True))
    returns, following = torch.empty_like(rewards), policy(warehouse.see())[1]
    for t in reversed(range(config.horizon)):
        following = returns[t] = rewards[t] + config.gamma * following
    return seen, actions, returns, rewards.mean()


def main():
    config = Config()
    torch.manual_seed(0)
    warehouse, policy = Warehouse(config.robots), Policy(config.width)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=config.lr, foreach=True)
    reward = torch.zeros(())
    for step in range(1, config.steps + 1):
        seen, actions, returns, gained = collect(warehouse, policy, config)
        reward += gained
        logits, values = policy(seen)
        chances = torch.distributions.Categorical(logits=logits)
        advantage = (returns - values).detach()
        loss = -(chances.log_prob(actions) * advantage).mean() + 0.5 * F.mse_loss(values, returns)
        loss = loss - config.entropy * chances.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: reward {reward.item() / 50:.4f}", flush=True)
            reward.zero_()


if __name__ == "__main__":
    main()
