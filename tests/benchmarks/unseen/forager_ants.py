"""Teach ants to find crumbs on a grid: advantage actor-critic with many ants at once."""

import argparse
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributions import Categorical

MOVES = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])


class Meadow:
    """Each ant has a grid of its own with a few crumbs; what is eaten grows back elsewhere."""

    def __init__(self, ants, side, crumbs):
        self.ants, self.side, self.place = torch.arange(ants), side, torch.randint(0, side, (ants, 2))
        self.crumbs = torch.zeros(ants, side, side)
        for _ in range(crumbs):
            self.grow(self.ants)

    def grow(self, ants):
        """A crumb where there is none."""
        where = (torch.rand(len(ants), self.side**2) - self.crumbs[ants].flatten(1)).argmax(1)
        self.crumbs[ants, where // self.side, where % self.side] = 1

    def seen(self):
        here = torch.zeros_like(self.crumbs)
        here[self.ants, self.place[:, 0], self.place[:, 1]] = 1
        return torch.stack([self.crumbs, here], 1)

    def step(self, move):
        self.place = (self.place + MOVES[move]).clamp(0, self.side - 1)
        at = self.ants, *self.place.unbind(1)
        eaten = self.crumbs[at].clone()
        self.crumbs[at] = 0
        self.grow(self.ants[eaten > 0])
        return eaten - 0.01


class Ant(nn.Module):
    def __init__(self, side, width):
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(2, width, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(width * ((side + 1) // 2) ** 2, 8 * width),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(8 * width, 4), nn.Linear(8 * width, 1)

    def forward(self, seen):
        x = self.eyes(seen)
        return self.policy(x), self.value(x).squeeze(1)


def returns(rewards, last, gamma):
    """What is earned from each step on, reckoned backwards."""
    later, found = last, []
    for reward in reversed(rewards):
        later = reward + gamma * later
        found.append(later)
    return torch.stack(found[::-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ants", type=int, default=draw("ants", 160, 176))
    parser.add_argument("--side", type=int, default=9)
    parser.add_argument("--crumbs", type=int, default=8)
    parser.add_argument("--width", type=int, default=draw("width", 24, 26))
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()

    torch.manual_seed(0)
    meadow, ant = Meadow(args.ants, args.side, args.crumbs), Ant(args.side, args.width)
    optimizer = torch.optim.Adam(ant.parameters(), lr=1e-3, eps=1e-5)
    recent = deque(maxlen=50)
    for step in range(1, args.steps + 1):
        chances, values, entropies, rewards = [], [], [], []
        for _ in range(args.length):
            logits, value = ant(meadow.seen())
            chosen = Categorical(logits=logits)
            move = chosen.sample()
            rewards.append(meadow.step(move))
            chances.append(chosen.log_prob(move))
            values.append(value)
            entropies.append(chosen.entropy())
        with torch.no_grad():
            target = returns(rewards, ant(meadow.seen())[1], 0.9)
        value, chance, entropy = map(torch.stack, (values, chances, entropies))
        earned = (chance * (target - value.detach()) + 0.03 * entropy).mean()
        loss = 0.5 * F.mse_loss(value, target) - earned
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(ant.parameters(), 0.5)
        optimizer.step()
        recent.append(torch.stack(rewards).mean().item())
        if step % 40 == 0:
            print(f"step {step}: {sum(recent) / len(recent):.4f} a move", flush=True)


if __name__ == "__main__":
    main()
