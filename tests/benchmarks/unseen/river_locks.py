"""Steer the locks of a river with proximal policy optimization."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.distributions import Categorical

LOCKS = 12


class River:
    """Many rivers at once: the water of each lock, and rain that nobody foresees."""

    def __init__(self, rivers):
        self.rivers = rivers
        self.water = torch.rand(rivers, LOCKS)
        self.rain = torch.zeros(rivers, LOCKS)

    def observe(self):
        return torch.cat([self.water, self.rain], dim=1)

    def step(self, gates):
        self.rain = 0.8 * self.rain + 0.05 * torch.rand(self.rivers, LOCKS)
        flow = self.water * torch.tensor([0.0, 0.2, 0.5])[gates]
        self.water = self.water - flow + self.rain
        self.water[:, 1:] += flow[:, :-1]
        reward = -(self.water - 0.5).square().sum(1)
        dry = (self.water.amax(1) > 3).unsqueeze(1)
        self.water = torch.where(dry, torch.rand(self.rivers, LOCKS), self.water)
        return self.observe(), reward, dry.squeeze(1).float()


class Keeper(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * LOCKS, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.gates = nn.Linear(hidden, 3 * LOCKS)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        x = self.body(x)
        return Categorical(logits=self.gates(x).view(-1, LOCKS, 3)), self.value(x).squeeze(1)


@torch.no_grad()
def roll_out(river, keeper, now, horizon, gamma, trace):
    seen, gates, chances, values, rewards, ends = [], [], [], [], [], []
    for _ in range(horizon):
        policy, value = keeper(now)
        gate = policy.sample()
        seen.append(now)
        gates.append(gate)
        chances.append(policy.log_prob(gate).sum(1))
        values.append(value)
        now, reward, end = river.step(gate)
        rewards.append(reward)
        ends.append(end)
    later, running, advantages = keeper(now)[1], torch.zeros(river.rivers), []
    for reward, value, end in zip(reversed(rewards), reversed(values), reversed(ends), strict=True):
        running = reward + gamma * (1 - end) * later - value + gamma * trace * (1 - end) * running
        advantages.append(running)
        later = value
    advantages = torch.cat(advantages[::-1])
    mean_reward = torch.stack(rewards).mean()
    return now, (torch.cat(seen), torch.cat(gates), torch.cat(chances), advantages, torch.cat(values)), mean_reward


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivers", type=int, default=draw("rivers", 512, 544))
    parser.add_argument("--horizon", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 448, 480))
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=40)
    args = parser.parse_args()

    torch.manual_seed(0)
    keeper = Keeper(args.hidden)
    optimizer = torch.optim.Adam(keeper.parameters(), lr=3e-4, eps=1e-5, fused=True)
    river = River(args.rivers)
    now = river.observe()
    for iteration in range(args.iterations):
        now, held, reward = roll_out(river, keeper, now, args.horizon, 0.98, 0.95)
        for _ in range(args.rounds):
            for rows in torch.randperm(len(held[0])).chunk(args.parts):
                seen, gates, before, advantage, value_before = (values[rows] for values in held)
                policy, value = keeper(seen)
                ratio = (policy.log_prob(gates).sum(1) - before).exp()
                scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
                loss = 0.5 * F.mse_loss(value, value_before + advantage) - gain - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(keeper.parameters(), 0.5)
                optimizer.step()
        print(f"iteration {iteration}: reward {reward.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
