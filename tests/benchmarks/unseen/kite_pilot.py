"""A kite held against the wind: soft actor critic over winds as tensors, with two critics and a learned temperature."""

import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw


@dataclass
class Settings:
    kites: int = 32
    memory: int = 20_000
    batch: int = draw("batch", 192, 224)
    hidden: int = draw("hidden", 128, 144)
    gamma: float = 0.98
    tau: float = 0.01
    steps: int = 130
    before: int = 30


class Winds:
    """Angle, speed and line of each kite; an evening ends without an end of value."""

    def __init__(self, count, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.state = torch.randn(count, 4, generator=self.g)
        self.age = torch.randint(0, 60, (count,), generator=self.g)

    def step(self, pull):
        angle, speed, line, wind = self.state.unbind(1)
        wind = 0.95 * wind + 0.3 * torch.randn(wind.shape, generator=self.g)
        speed = 0.9 * speed + 0.2 * pull[:, 0] - 0.1 * torch.sin(angle) + 0.1 * wind
        angle = angle + 0.2 * speed
        line = (line + 0.1 * pull[:, 1]).clamp(-2, 2)
        after = torch.stack([angle, speed, line, wind], 1)
        reward = torch.cos(angle) - 0.05 * pull.square().sum(1) - 0.1 * (line - wind).abs()
        fallen = angle.abs() > 3
        self.age += 1
        over = fallen | (self.age >= 60)
        fresh = torch.randn(after.shape, generator=self.g)
        self.state = torch.where(over[:, None], fresh, after)
        self.age = torch.where(over, 0, self.age)
        return after, reward, fallen.float()


class Memory:
    def __init__(self, room):
        self.rows, self.room, self.filled, self.at = torch.empty(room, 12), room, 0, 0

    def add(self, *parts):
        rows = torch.cat([part.view(len(part), -1) for part in parts], 1)
        places = (self.at + torch.arange(len(rows))) % self.room
        self.rows[places] = rows
        self.at = (self.at + len(rows)) % self.room
        self.filled = min(self.room, self.filled + len(rows))

    def draw(self, count):
        rows = self.rows[torch.randint(self.filled, (count,))]
        return rows[:, :4], rows[:, 4:6], rows[:, 6], rows[:, 7:11], rows[:, 11]


def mlp(size, hidden, out):
    return nn.Sequential(
        nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out)
    )


class Pilot(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = mlp(4, hidden, 4)

    def forward(self, state):
        mean, spread = self.body(state).chunk(2, 1)
        spread = spread.clamp(-5, 1)
        raw = mean + spread.exp() * torch.randn_like(mean)
        pull = raw.tanh()
        chance = -0.5 * ((raw - mean) / spread.exp()) ** 2 - spread - 0.919
        return pull, (chance - torch.log(1 - pull**2 + 1e-6)).sum(1)


class Critics(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.first, self.second = mlp(6, hidden, 1), mlp(6, hidden, 1)

    def forward(self, state, pull):
        both = torch.cat([state, pull], 1)
        return self.first(both).squeeze(1), self.second(both).squeeze(1)


def main():
    s = Settings()
    torch.manual_seed(33)
    winds, memory = Winds(s.kites, seed=2), Memory(s.memory)
    pilot, critics = Pilot(s.hidden), Critics(s.hidden)
    slow = copy.deepcopy(critics).requires_grad_(False)
    heat = torch.zeros((), requires_grad=True)
    for_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    for_pilot = torch.optim.Adam(pilot.parameters(), lr=5e-4)
    for_heat = torch.optim.Adam([heat], lr=1e-3)
    rewards = []
    for step in range(s.before + s.steps):
        with torch.no_grad():
            state = winds.state
            pull = pilot(state)[0]
            after, reward, fallen = winds.step(pull)
            memory.add(state, pull, reward, after, fallen)
        rewards.append(reward.mean())
        if step < s.before:
            continue
        state, pull, reward, after, fallen = memory.draw(s.batch)
        alpha = heat.exp().detach()
        with torch.no_grad():
            later, chance = pilot(after)
            worth = torch.min(*slow(after, later)) - alpha * chance
            wanted = reward + s.gamma * (1 - fallen) * worth
        first, second = critics(state, pull)
        critic_loss = F.mse_loss(first, wanted) + F.mse_loss(second, wanted)
        for_critics.zero_grad()
        critic_loss.backward()
        for_critics.step()

        critics.requires_grad_(False)
        tried, chance = pilot(state)
        pilot_loss = (alpha * chance - torch.min(*critics(state, tried))).mean()
        for_pilot.zero_grad()
        pilot_loss.backward()
        for_pilot.step()
        critics.requires_grad_(True)

        heat_loss = -(heat.exp() * (chance.detach() - 2.0)).mean()
        for_heat.zero_grad()
        heat_loss.backward()
        for_heat.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(critics.parameters()), s.tau)
        if step % 25 == 0:
            mean = torch.stack(rewards[-25:]).mean().item()
            print(f"step {step} reward {mean:.3f} critics {critic_loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
