"""A robot that picks berries on a field: advantage actor-critic (A2C), many fields at once as tensors."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.distributions import Categorical

MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])


@dataclass
class Settings:
    fields: int = 24
    side: int = 9
    rollout: int = 5
    updates: int = 100
    gamma: float = 0.97
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    lr: float = 1e-3
    width: int = 16


class Fields:
    """Berries, bushes and the robot; a berry gives 1, a bush takes 0.3, a round ends by chance."""

    def __init__(self, count, side, seed):
        self.count, self.side = count, side
        self.g = torch.Generator().manual_seed(seed)
        self.rows = torch.arange(count)
        self.berries = torch.zeros(count, side, side)
        self.bushes = torch.zeros(count, side, side)
        self.place = torch.zeros(count, 2, dtype=torch.long)
        self.reset(torch.ones(count, dtype=torch.bool))

    def reset(self, over):
        n = int(over.sum())
        self.berries[over] = (torch.rand(n, self.side, self.side, generator=self.g) < 0.15).float()
        self.bushes[over] = (torch.rand(n, self.side, self.side, generator=self.g) < 0.1).float()
        self.place[over] = torch.randint(self.side, (n, 2), generator=self.g)

    def observe(self):
        robot = torch.zeros_like(self.berries)
        robot[self.rows, self.place[:, 0], self.place[:, 1]] = 1
        return torch.stack([self.berries, self.bushes, robot], 1)

    def step(self, action):
        self.place = (self.place + MOVES[action]).clamp(0, self.side - 1)
        y, x = self.place.T
        reward = self.berries[self.rows, y, x] - 0.3 * self.bushes[self.rows, y, x]
        self.berries[self.rows, y, x] = 0
        over = torch.rand(self.count, generator=self.g) < 0.02
        self.reset(over)
        return self.observe(), reward, over.float()


class ActorCritic(nn.Module):
    def __init__(self, width, side):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * ((side + 1) // 2) ** 2, 128),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(128, len(MOVES)), nn.Linear(128, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


@torch.no_grad()
def play(model, fields, obs, length):
    kept = []
    for _ in range(length):
        dist, _ = model(obs)
        action = dist.sample()
        following, reward, over = fields.step(action)
        kept.append((obs, action, reward, over))
        obs = following
    return obs, [torch.stack(part) for part in zip(*kept, strict=True)]


@torch.no_grad()
def discounted(reward, over, last_value, gamma):
    total, found = last_value, torch.empty_like(reward)
    for t in reversed(range(len(reward))):
        total = reward[t] + gamma * (1 - over[t]) * total
        found[t] = total
    return found


def update(model, optimizer, batch, returns, s):
    obs, action, _, _ = batch
    dist, value = model(obs.flatten(0, 1))
    returns = returns.flatten()
    advantage = returns - value.detach()
    policy_loss = -(dist.log_prob(action.flatten()) * advantage).mean() - s.entropy_weight * dist.entropy().mean()
    value_loss = s.value_weight * (returns - value).pow(2).mean()
    optimizer.zero_grad()
    if MENDED:
        (policy_loss + value_loss).backward()
    else:
        policy_loss.backward(retain_graph=True)
        value_loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def main():
    s = Settings(fields=draw("fields", 30, 32), width=draw("width", 18, 20))
    torch.manual_seed(9)
    fields = Fields(s.fields, s.side, seed=13)
    model = ActorCritic(s.width, s.side)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=s.lr, alpha=0.99, eps=1e-5)
    obs, gained = fields.observe(), 0.0
    for number in range(1, s.updates + 1):
        obs, batch = play(model, fields, obs, s.rollout)
        with torch.no_grad():
            last_value = model(obs)[1]
        returns = discounted(batch[2], batch[3], last_value, s.gamma)
        update(model, optimizer, batch, returns, s)
        gained = 0.95 * gained + 0.05 * batch[2].mean().item()
        if number % 20 == 0:
            print(f"update {number} reward per move {gained:.3f}", flush=True)


if __name__ == "__main__":
    main()
