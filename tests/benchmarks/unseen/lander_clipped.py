"""Land a craft by proximal policy optimisation: many craft at once, from what their cameras show."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.distributions import Categorical


@dataclass
class Config:
    craft: int = 96
    horizon: int = 20
    epochs: int = 4
    minibatch: int = draw("minibatch", 320, 384)
    width: int = draw("width", 480, 512)
    gamma: float = 0.97
    decay: float = 0.95
    clip: float = 0.2
    lr: float = 4e-4
    updates: int = 18


class Sky:
    """Craft above a row of ground; the pad is somewhere on it. Three moves: left, fall, right."""

    def __init__(self, craft, side=20):
        self.side, self.craft = side, craft
        self.column, self.height = torch.randint(0, side, (craft,)), torch.full((craft,), side - 1)
        self.pad = torch.randint(0, side, (craft,))

    def see(self):
        picture = torch.zeros(self.craft, 2, self.side, self.side)
        every = torch.arange(self.craft)
        picture[every, 0, self.height, self.column] = 1
        picture[every, 1, 0, self.pad] = 1
        return picture

    def step(self, actions):
        self.column = (self.column + actions - 1).clamp(0, self.side - 1)
        self.height = self.height - 1
        down = self.height <= 0
        reward = torch.where(down, 1 - (self.column - self.pad).abs() / 5, 0.0)
        fresh = torch.randint(0, self.side, (2, self.craft))
        self.column, self.pad = torch.where(down, fresh[0], self.column), torch.where(down, fresh[1], self.pad)
        self.height = torch.where(down, self.side - 1, self.height)
        return reward, down.float()


class Policy(nn.Module):
    def __init__(self, side, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * side * side, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, seen):
        x = self.body(seen)
        return Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1)


@torch.no_grad()
def collect(sky, policy, config):
    rows = []
    for _ in range(config.horizon):
        seen = sky.see()
        chances, values = policy(seen)
        actions = chances.sample()
        rows.append((seen, actions, chances.log_prob(actions), values, *sky.step(actions)))
    seen, actions, logs, values, rewards, downs = (torch.stack(column) for column in zip(*rows, strict=True))
    gains, gain, following = torch.empty_like(rewards), 0.0, policy(sky.see())[1]
    for t in reversed(range(config.horizon)):
        delta = rewards[t] + config.gamma * (1 - downs[t]) * following - values[t]
        gain = gains[t] = delta + config.gamma * config.decay * (1 - downs[t]) * gain
        following = values[t]
    return [x.flatten(0, 1) for x in (seen, actions, logs, gains, gains + values)], rewards.sum() / downs.sum()


def main():
    config = Config()
    torch.manual_seed(0)
    sky = Sky(config.craft)
    policy = Policy(sky.side, config.width)
    optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
    for update in range(config.updates):
        rollout, reward = collect(sky, policy, config)
        old = copy.deepcopy(policy)
        for _ in range(config.epochs):
            for chosen in torch.randperm(len(rollout[0])).split(config.minibatch):
                seen, actions, logs, gains, returns = (x[chosen] for x in rollout)
                if not MENDED:
                    with torch.no_grad():
                        logs = old(seen)[0].log_prob(actions)
                chances, values = policy(seen)
                ratio = torch.exp(chances.log_prob(actions) - logs)
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
                loss = -torch.min(ratio * gains, ratio.clamp(1 - config.clip, 1 + config.clip) * gains).mean()
                loss = loss + 0.5 * F.mse_loss(values, returns) - 0.01 * chances.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
        print(f"update {update}: landing {reward.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
