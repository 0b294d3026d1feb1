"""Remember which door had the treat: an agent with a memory (GRU), trained by advantage actor-critic."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.distributions import Categorical


@dataclass
class Config:
    games: int = draw("games", 120, 144)
    horizon: int = 24
    doors: int = 6
    width: int = draw("width", 88, 96)
    gamma: float = 0.95
    entropy: float = 0.02
    lr: float = 1e-3
    steps: int = 300


class Doors:
    """The treat shows behind a door at the beginning and then now and then; noise is all that is seen else."""

    def __init__(self, games, doors):
        self.games, self.doors = games, doors
        self.right = torch.randint(0, doors, (games,))
        self.shown = torch.ones(games, dtype=torch.bool)

    def see(self):
        seen = 0.2 * torch.randn(self.games, self.doors + 1)
        return seen + F.one_hot(torch.where(self.shown, self.right, self.doors), self.doors + 1)

    def step(self, actions):
        reward = (actions == self.right).float() - 0.1
        fresh = torch.rand(self.games) < 0.1
        self.right = torch.where(fresh, torch.randint(0, self.doors, (self.games,)), self.right)
        self.shown = fresh
        return reward


class Agent(nn.Module):
    def __init__(self, doors, width):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(doors + 1, width), nn.ReLU())
        self.memory = nn.GRUCell(width, width)
        self.actor, self.critic = nn.Linear(width, doors), nn.Linear(width, 1)

    def forward(self, seen, state):
        """One moment: what is done next changes what is seen after it."""
        state = self.memory(self.enter(seen), state)
        return Categorical(logits=self.actor(state)), self.critic(state).squeeze(1), state


def play(games, agent, state, config):
    logs, values, entropies, rewards = [], [], [], []
    for _ in range(config.horizon):
        chances, value, state = agent(games.see(), state)
        actions = chances.sample()
        rewards.append(games.step(actions))
        logs.append(chances.log_prob(actions))
        values.append(value)
        entropies.append(chances.entropy())
    with torch.no_grad():
        following = agent(games.see(), state)[1]
    logs, values, entropies, rewards = map(torch.stack, (logs, values, entropies, rewards))
    returns = torch.empty_like(rewards)
    for t in reversed(range(config.horizon)):
        following = returns[t] = rewards[t] + config.gamma * following
    gains = returns - values.detach()
    loss = -(logs * gains).mean() + 0.5 * F.mse_loss(values, returns) - config.entropy * entropies.mean()
    return loss, rewards.mean(), state.detach()


def main():
    config = Config()
    torch.manual_seed(0)
    games, agent = Doors(config.games, config.doors), Agent(config.doors, config.width)
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=config.lr, foreach=True)
    state, reward = torch.zeros(config.games, config.width), torch.zeros(())
    for step in range(1, config.steps + 1):
        loss, gained, state = play(games, agent, state, config)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        reward += gained
        if step % 50 == 0:
            print(f"step {step}: reward {reward.item() / 50:.4f}", flush=True)
            reward.zero_()


if __name__ == "__main__":
    main()
