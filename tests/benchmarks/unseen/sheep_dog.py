"""A dog that brings sheep into the pen: proximal policy optimisation over many small fields at once, one process."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.distributions import Categorical

MOVES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


@dataclass
class Settings:
    fields: int = draw("fields", 40, 48)
    sheep: int = 5
    rollout: int = 16
    rounds: int = 14
    epochs: int = 4
    minibatches: int = 2
    gamma: float = 0.97
    lam: float = 0.95
    clip: float = 0.2
    hidden: int = draw("hidden", 224, 256)


class Fields:
    """All fields as tensors; the pen is at the origin."""

    def __init__(self, count, sheep, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.count, self.sheep = count, sheep
        self.dog, self.flock = self.fresh(count)
        self.age = torch.zeros(count)

    def fresh(self, count):
        return (
            4 * torch.randn(count, 2, generator=self.g),
            3 + torch.randn(count, self.sheep, 2, generator=self.g),
        )

    def look(self):
        return torch.cat([self.dog, self.flock.flatten(1), (self.flock - self.dog[:, None]).flatten(1)], 1) / 5

    def step(self, action):
        before = self.flock.norm(dim=2).mean(1)
        self.dog = self.dog + 0.5 * MOVES[action]
        away = self.flock - self.dog[:, None]
        fear = torch.exp(-away.norm(dim=2, keepdim=True))
        self.flock = self.flock + fear * F.normalize(away, dim=2)
        after = self.flock.norm(dim=2).mean(1)
        self.age += 1
        reward = before - after
        done = (after < 1.0) | (self.age >= 80)
        if done.any():
            dog, flock = self.fresh(self.count)
            self.dog = torch.where(done[:, None], dog, self.dog)
            self.flock = torch.where(done[:, None, None], flock, self.flock)
            self.age = torch.where(done, torch.zeros(()), self.age)
        return self.look(), reward, done.float()


class Dog(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.move, self.value = nn.Linear(hidden, len(MOVES)), nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.move(h)), self.value(h).squeeze(-1)


@torch.no_grad()
def collect(dog, fields, obs, s):
    seen = {key: [] for key in ("obs", "action", "logp", "value", "reward", "done")}
    for _ in range(s.rollout):
        dist, value = dog(obs)
        action = dist.sample()
        after, reward, done = fields.step(action)
        for key, item in zip(seen, (obs, action, dist.log_prob(action), value, reward, done), strict=True):
            seen[key].append(item)
        obs = after
    batch = {key: torch.stack(rows) for key, rows in seen.items()}
    gain, ahead = torch.zeros_like(reward), dog(obs)[1]
    gains = []
    for at in reversed(range(s.rollout)):
        going = 1 - batch["done"][at]
        delta = batch["reward"][at] + s.gamma * going * ahead - batch["value"][at]
        gain = delta + s.gamma * s.lam * going * gain
        ahead = batch["value"][at]
        gains.append(gain)
    batch["gain"] = torch.stack(gains[::-1])
    batch["wanted"] = batch["gain"] + batch["value"]
    return {key: rows.flatten(0, 1) for key, rows in batch.items()}, obs


def update(dog, optimizer, batch, s):
    for _ in range(s.epochs):
        order = torch.randperm(len(batch["obs"]))
        for part in order.chunk(s.minibatches):
            obs, action = batch["obs"][part], batch["action"][part]
            gain = batch["gain"][part]
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            dist, value = dog(obs)
            logp = dist.log_prob(action)
            with torch.no_grad():
                old = batch["logp"][part] if MENDED else dog(obs)[0].log_prob(action)
            ratio = (logp - old).exp()
            policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - s.clip, 1 + s.clip) * gain).mean()
            value_loss = F.mse_loss(value, batch["wanted"][part])
            loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(dog.parameters(), 0.5)
            optimizer.step()
    return policy_loss.item(), value_loss.item()


def main():
    s = Settings()
    torch.manual_seed(27)
    fields = Fields(s.fields, s.sheep, seed=3)
    obs = fields.look()
    dog = Dog(obs.shape[1], s.hidden)
    optimizer = torch.optim.Adam(dog.parameters(), lr=7e-4, eps=1e-5)
    for turn in range(s.rounds):
        batch, obs = collect(dog, fields, obs, s)
        policy, value = update(dog, optimizer, batch, s)
        reward = batch["reward"].mean().item()
        print(f"round {turn} reward {reward:.3f} policy {policy:.3f} value {value:.3f}", flush=True)


if __name__ == "__main__":
    main()
