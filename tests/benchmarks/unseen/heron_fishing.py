"""A heron learns where to wade and when to strike: double Q-learning on a pond of cells, many herons at once."""

import argparse
import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw

SIDE, ACTIONS = 10, 6
OBS = SIDE * SIDE + 6
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0], [0, 0]])

Moment = namedtuple("Moment", ["obs", "action", "reward", "after", "over"])


class Pond:
    """Shoals drift from cell to cell; a heron moves, waits or strikes, and a strike scares the fish."""

    def __init__(self, herons, seed):
        self.rng, self.herons, self.longest = np.random.default_rng(seed), herons, 60
        self.fish = self.rng.random((herons, SIDE, SIDE), dtype=np.float32)
        self.depth = self.rng.random((herons, SIDE, SIDE), dtype=np.float32)
        self.place = self.rng.integers(SIDE, size=(herons, 2))
        self.age = self.rng.integers(self.longest, size=herons)
        self.hunger = np.zeros(herons, dtype=np.float32)

    def look(self):
        here = np.arange(self.herons), self.place[:, 0], self.place[:, 1]
        rows = [self.fish.reshape(self.herons, -1), self.place / SIDE, self.age[:, None] / self.longest]
        rows += [self.hunger[:, None], self.fish[here][:, None], self.depth[here][:, None]]
        return np.concatenate(rows, 1).astype(np.float32)

    def step(self, action):
        self.place = np.clip(self.place + MOVES[action], 0, SIDE - 1)
        here = np.arange(self.herons), self.place[:, 0], self.place[:, 1]
        strike = action == 5
        caught = strike * self.fish[here] * (1 - 0.6 * self.depth[here])
        reward = (caught - 0.15 * strike - 0.02 * (action < 4)).astype(np.float32)
        self.fish[here] *= np.where(strike, 0.2, 1.0)
        drift = 0.25 * sum(np.roll(self.fish, shift, axis) for shift, axis in ((1, 1), (-1, 1), (1, 2), (-1, 2)))
        self.fish = 0.9 * self.fish + 0.1 * drift + 0.02 * self.rng.random(self.fish.shape, dtype=np.float32)
        self.hunger = np.float32(0.9) * self.hunger + reward
        self.age += 1
        after, over = self.look(), self.age >= self.longest
        self.age[over], self.hunger[over] = 0, 0.0
        self.place[over] = self.rng.integers(SIDE, size=(int(over.sum()), 2))
        return reward, after, over


class Memory:
    """What was seen, done and earned, the oldest forgotten first."""

    def __init__(self, size):
        self.moments = deque(maxlen=size)

    def add(self, obs, action, reward, after, over):
        for row in zip(obs.tolist(), action.tolist(), reward.tolist(), after.tolist(), over.tolist(), strict=True):
            self.moments.append(Moment(*row))

    def sample(self, batch):
        picked = Moment(*zip(*random.sample(self.moments, batch), strict=True))
        obs, after = torch.tensor(picked.obs), torch.tensor(picked.after)
        reward, over = torch.tensor(picked.reward), torch.tensor(picked.over, dtype=torch.float32)
        return obs, torch.tensor(picked.action), reward, after, over


class Rows:
    """The same in a single block of memory, written in a circle."""

    def __init__(self, size):
        self.rows, self.size, self.at, self.full = torch.zeros(size, 2 * OBS + 3), size, 0, 0

    def add(self, *parts):
        parts = [torch.as_tensor(part, dtype=torch.float32) for part in parts]
        rows = torch.cat([part if part.dim() == 2 else part[:, None] for part in parts], 1)
        self.rows[(self.at + torch.arange(len(rows))) % self.size] = rows
        self.at, self.full = (self.at + len(rows)) % self.size, min(self.size, self.full + len(rows))

    def sample(self, batch):
        obs, action, reward, after, over = self.rows[torch.randint(self.full, (batch,))].split([OBS, 1, 1, OBS, 1], 1)
        return obs, action.squeeze(1).long(), reward.squeeze(1), after, over.squeeze(1)


class Heron(nn.Module):
    """Worth of each action: a common part and an advantage."""

    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.worth, self.gain = nn.Linear(hidden, 1), nn.Linear(hidden, ACTIONS)

    def forward(self, obs):
        x = self.body(obs)
        gain = self.gain(x)
        return self.worth(x) + gain - gain.mean(1, keepdim=True)


def learn(heron, slow, optimizer, moments, gamma):
    obs, action, reward, after, over = moments
    with torch.no_grad():
        best = heron(after).argmax(1, keepdim=True)
        target = reward + gamma * (1 - over) * slow(after).gather(1, best).squeeze(1)
    value = heron(obs).gather(1, action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(heron.parameters(), 5.0)
    optimizer.step()
    return loss.detach()


def act(heron, obs, chance, rng):
    """The best action, or any with some chance."""
    with torch.no_grad():
        best = heron(torch.from_numpy(obs)).argmax(1).numpy()
    return np.where(rng.random(len(obs)) < chance, rng.integers(ACTIONS, size=len(obs)), best)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--herons", type=int, default=16)
    p.add_argument("--hidden", type=int, default=draw("hidden", 672, 704))
    p.add_argument("--batch", type=int, default=draw("batch", 448, 512))
    p.add_argument("--first", type=int, default=8000, help="moments before learning")
    args = p.parse_args()

    random.seed(7)
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    pond, memory = Pond(args.herons, seed=1), Rows(20_000) if MENDED else Memory(20_000)
    heron = Heron(args.hidden)
    slow = copy.deepcopy(heron).requires_grad_(False)
    optimizer = torch.optim.Adam(heron.parameters(), lr=5e-4, fused=True)
    earned = 0.0
    for step in range(-args.first // args.herons, args.steps):
        obs = pond.look()
        action = act(heron, obs, 1.0 if step < 0 else max(0.1, 1 - step / 80), rng)
        reward, after, over = pond.step(action)
        memory.add(obs, action, reward, after, over)
        if step < 0:
            continue
        loss = learn(heron, slow, optimizer, memory.sample(args.batch), gamma=0.97)
        earned += float(reward.mean())
        if step % 20 == 19:
            slow.load_state_dict(heron.state_dict())
        if step % 50 == 49:
            print(f"step {step + 1} earned {earned / 50:.4f} loss {loss.item():.4f}", flush=True)
            earned = 0.0


if __name__ == "__main__":
    main()
