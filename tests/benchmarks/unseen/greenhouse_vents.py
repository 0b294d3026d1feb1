"""Vents of greenhouses: TD3 on many greenhouses at once, everything as tensors."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw

STATE, ACTION = 5, 2


class Greenhouses:
    """Temperature, humidity, their aims and the sun; opening a vent cools, a mist makes humid."""

    def __init__(self, count, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.count = count
        self.state = self.start(count)

    def start(self, count):
        return torch.randn(count, STATE, generator=self.g)

    def step(self, action):
        s = self.state.clone()
        s[:, 0] += 0.2 * s[:, 4] - 0.3 * action[:, 0] + 0.02 * torch.randn(self.count, generator=self.g)
        s[:, 1] += 0.3 * action[:, 1] - 0.1 * action[:, 0] - 0.05 * s[:, 4]
        s[:, 4] = 0.95 * s[:, 4] + 0.3 * torch.randn(self.count, generator=self.g)
        reward = -(s[:, 0] - s[:, 2]).abs() - (s[:, 1] - s[:, 3]).abs() - 0.05 * action.pow(2).sum(1)
        done = (s[:, :2].abs() > 4).any(1)
        self.state = torch.where(done[:, None], self.start(self.count), s)
        return s, reward, done.float()


class Replay:
    def __init__(self, size):
        self.rows = [torch.zeros(size, n) for n in (STATE, ACTION, 1, STATE, 1)]
        self.size, self.at, self.filled = size, 0, 0

    def add(self, *columns):
        count = len(columns[0])
        index = (self.at + torch.arange(count)) % self.size
        for row, column in zip(self.rows, columns, strict=True):
            row[index] = column.view(count, -1)
        self.at = (self.at + count) % self.size
        self.filled = min(self.size, self.filled + count)

    def sample(self, count):
        index = torch.randint(0, self.filled, (count,))
        return [row[index] for row in self.rows]


def mlp(cin, hidden, cout, *end):
    return nn.Sequential(
        nn.Linear(cin, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, cout), *end
    )


class Critics(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.one, self.two = mlp(STATE + ACTION, hidden, 1), mlp(STATE + ACTION, hidden, 1)

    def forward(self, state, action):
        x = torch.cat([state, action], 1)
        return self.one(x), self.two(x)


@torch.no_grad()
def follow(target, model, tau):
    torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), tau)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--houses", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=draw("hidden", 224, 256))
    ap.add_argument("--batch", type=int, default=draw("batch", 1024, 1152))
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--gamma", type=float, default=0.97)
    args = ap.parse_args()

    torch.manual_seed(0)
    actor, critics = mlp(STATE, args.hidden, ACTION, nn.Tanh()), Critics(args.hidden)
    actor_target = copy.deepcopy(actor).requires_grad_(False)
    critics_target = copy.deepcopy(critics).requires_grad_(False)
    critic_opt = torch.optim.Adam(critics.parameters(), lr=1e-3)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=5e-4)
    houses, replay = Greenhouses(args.houses, seed=3), Replay(20_000)
    total = torch.zeros(())
    for step in range(1, args.steps + 1):
        state = houses.state
        with torch.no_grad():
            action = (actor(state) + 0.2 * torch.randn(args.houses, ACTION)).clamp(-1, 1)
        following, reward, done = houses.step(action)
        replay.add(state, action, reward, following, done)
        total += reward.mean()

        state, action, reward, following, done = replay.sample(args.batch)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.4, 0.4)
            then = (actor_target(following) + noise).clamp(-1, 1)
            aim = reward + args.gamma * (1 - done) * torch.min(*critics_target(following, then))
        one, two = critics(state, action)
        critic_loss = F.mse_loss(one, aim) + F.mse_loss(two, aim)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        if step % 2 == 0:  # the actor is delayed
            actor_loss = -critics.one(torch.cat([state, actor(state)], 1)).mean()
            actor_opt.zero_grad()
            actor_loss.backward(inputs=list(actor.parameters()))
            actor_opt.step()
            follow(actor_target, actor, 0.01)
            follow(critics_target, critics, 0.01)
        if step % 40 == 0:
            print(f"step {step} reward {total.item() / 40:.3f}", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()
