"""Soft actor-critic on many small pendulums at once."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw

ENVS, HORIZON = 32, 200
BATCH, WIDTH = draw("batch", 384, 512), draw("width", 224, 256)
GAMMA, TAU, WANTED_ENTROPY = 0.99, 0.005, -1.0


class Pendulums:
    """State: angle and speed of each; reward falls with distance from upright, speed and force."""

    def __init__(self, count):
        self.state = torch.stack([torch.rand(count) * 2 * math.pi, torch.randn(count)], 1)
        self.age = torch.randint(0, HORIZON, (count,))

    def observe(self):
        angle, speed = self.state.T
        return torch.stack([angle.cos(), angle.sin(), speed / 8], 1)

    def step(self, force):
        angle, speed = self.state.T
        away = (angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(away**2 + 0.1 * speed**2 + 0.001 * (2 * force) ** 2)
        speed = (speed + (15 * angle.sin() + 6 * force) * 0.05).clamp(-8, 8)
        self.state = torch.stack([angle + speed * 0.05, speed], 1)
        self.age += 1
        over = self.age >= HORIZON
        if over.any():
            new = int(over.sum())
            self.state[over] = torch.stack([torch.rand(new) * 2 * math.pi, torch.randn(new)], 1)
            self.age[over] = 0
        return reward


class Replay:
    """Columns in one block each, written in turn."""

    def __init__(self, capacity):
        self.rows = torch.empty(capacity, 8)
        self.filled = self.at = 0

    def push(self, *columns):
        rows = torch.cat([c.reshape(ENVS, -1) for c in columns], 1)
        self.rows[self.at : self.at + ENVS] = rows
        self.at = (self.at + ENVS) % len(self.rows)
        self.filled = min(self.filled + ENVS, len(self.rows))

    def sample(self, count):
        return self.rows[torch.randint(0, self.filled, (count,))].split([3, 1, 1, 3], 1)


def mlp(entering, leaving):
    return nn.Sequential(
        nn.Linear(entering, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, leaving)
    )


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(3, 2)

    def forward(self, seen):
        mean, log_spread = self.net(seen).chunk(2, 1)
        spread = log_spread.clamp(-5, 2).exp()
        noise = torch.randn_like(mean)
        before = mean + spread * noise
        action = before.tanh()
        log_chance = -0.5 * noise**2 - spread.log() - 0.5 * math.log(2 * math.pi)
        return action, log_chance - 2 * (math.log(2) - before - F.softplus(-2 * before))


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = mlp(4, 1), mlp(4, 1)

    def forward(self, seen, action):
        x = torch.cat([seen, action], 1)
        return self.one(x), self.two(x)


def main():
    torch.manual_seed(0)
    games, replay = Pendulums(ENVS), Replay(ENVS * 4000)
    actor, critics, targets = Actor(), Critics(), Critics()
    targets.load_state_dict(critics.state_dict())
    log_alpha = nn.Parameter(torch.zeros(()))
    of_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    of_actor = torch.optim.Adam(actor.parameters(), lr=3e-4)
    of_alpha = torch.optim.Adam([log_alpha], lr=3e-4)
    for step in range(1_000_000):
        seen = games.observe()
        with torch.no_grad():
            action = actor(seen)[0] if step > 100 else 2 * torch.rand(ENVS, 1) - 1
        reward = games.step(action.squeeze(1))
        replay.push(seen, action, reward, games.observe())
        if step < 20:
            continue
        seen, action, reward, after = replay.sample(BATCH)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            following, log_chance = actor(after)
            wanted = reward + GAMMA * (torch.minimum(*targets(after, following)) - alpha * log_chance)
        loss = sum(F.mse_loss(guess, wanted) for guess in critics(seen, action))
        of_critics.zero_grad()
        loss.backward()
        of_critics.step()

        critics.requires_grad_(False)
        action, log_chance = actor(seen)
        of_actor.zero_grad()
        (alpha * log_chance - torch.minimum(*critics(seen, action))).mean().backward()
        of_actor.step()
        critics.requires_grad_(True)

        of_alpha.zero_grad()
        (-log_alpha * (log_chance.detach() + WANTED_ENTROPY).mean()).backward()
        of_alpha.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), TAU)
        if step % 200 == 0:
            print(f"{step}: loss {loss.item():.3f}, reward {reward.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
