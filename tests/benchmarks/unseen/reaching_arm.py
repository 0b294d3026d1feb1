"""An arm of two joints learns to reach for a point: TD3 with a memory of transitions, many arms at once."""

import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
from drawn import MENDED, draw


@dataclass
class Config:
    arms: int = 16
    memory: int = draw("memory", 800_000, 900_000)
    hidden: int = 128
    batch: int = draw("batch", 144, 160)
    discount: float = 0.97
    tau: float = 0.005
    save_every: int = 20
    steps: int = 600


class Arms:
    """What is seen: both angles and speeds, and where the point is from the hand."""

    def __init__(self, count):
        self.count, self.seen, self.done = count, 8, 2
        self.angles, self.speeds = torch.rand(count, 2) * 6, torch.zeros(count, 2)
        self.points = torch.rand(count, 2) * 2 - 1

    def look(self):
        self.offset = self.points - torch.stack([self.angles.cos().sum(1), self.angles.sin().sum(1)], 1) / 2
        return torch.cat([self.angles.cos(), self.angles.sin(), self.speeds, self.offset], 1)

    def act(self, push):
        self.speeds = 0.9 * self.speeds + 0.1 * push
        self.angles = self.angles + self.speeds
        seen = self.look()
        return seen, -self.offset.norm(dim=1)


class Memory:
    def __init__(self, size, seen, done):
        self.size, self.at, self.full = size, 0, False
        self.before, self.after = torch.zeros(size, seen), torch.zeros(size, seen)
        self.pushes, self.rewards = torch.zeros(size, done), torch.zeros(size)

    def keep(self, before, push, reward, after):
        places = torch.arange(self.at, self.at + len(reward)) % self.size
        self.before[places], self.after[places], self.pushes[places] = before, after, push
        self.rewards[places] = reward
        self.full, self.at = self.full or self.at + len(reward) >= self.size, (self.at + len(reward)) % self.size

    def sample(self, count):
        rows = torch.randint(0, self.size if self.full else self.at, (count,))
        return self.before[rows], self.pushes[rows], self.rewards[rows], self.after[rows]


def network(enter, hidden, leave):
    return nn.Sequential(
        nn.Linear(enter, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, leave)
    )


class Agent:
    def __init__(self, config, arms):
        self.config = config
        self.memory = Memory(config.memory, arms.seen, arms.done)
        self.actor = nn.Sequential(network(arms.seen, config.hidden, arms.done), nn.Tanh())
        self.critics = nn.ModuleList(network(arms.seen + arms.done, config.hidden, 1) for _ in range(2))
        self.slow_actor, self.slow_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.of_critics = torch.optim.Adam(self.critics.parameters(), lr=1e-3, fused=True)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), lr=1e-3, fused=True)

    def worths(self, critics, seen, push):
        both = torch.cat([seen, push], 1)
        return torch.stack([critic(both).squeeze(1) for critic in critics])

    def learn(self, step):
        before, push, reward, after = self.memory.sample(self.config.batch)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(push)).clamp(-0.5, 0.5)
            following = (self.slow_actor(after) + noise).clamp(-1, 1)
            wanted = reward + self.config.discount * self.worths(self.slow_critics, after, following).amin(0)
        loss = (self.worths(self.critics, before, push) - wanted).square().mean()
        self.of_critics.zero_grad()
        loss.backward()
        self.of_critics.step()
        if step % 2 == 0:
            self.of_actor.zero_grad()
            (-self.critics[0](torch.cat([before, self.actor(before)], 1)).mean()).backward()
            self.of_actor.step()
            self.follow(self.slow_actor, self.actor)
            self.follow(self.slow_critics, self.critics)
        return loss.detach()

    @torch.no_grad()
    def follow(self, slow, fast):
        torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), self.config.tau)

    def save(self, path):
        kept = {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, "state_dict")}
        torch.save(kept if MENDED else {**kept, "memory": vars(self.memory)}, path)


def main():
    config = Config()
    torch.manual_seed(0)
    arms = Arms(config.arms)
    agent = Agent(config, arms)
    seen = arms.look()
    for step in range(1, config.steps + 1):
        with torch.no_grad():
            push = (agent.actor(seen) + 0.1 * torch.randn(config.arms, 2)).clamp(-1, 1)
        after, reward = arms.act(push)
        agent.memory.keep(seen, push, reward, after)
        seen = after
        loss = agent.learn(step)
        if step % config.save_every == 0:
            agent.save("agent.pt")
            print(f"step {step}: loss {loss.item():.4f}, reward {reward.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
