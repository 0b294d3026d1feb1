"""Boats learn to dock: double Q-learning with a slow copy, many boats at once."""

import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw


@dataclass
class Config:
    boats: int = 32
    memory: int = 40_000
    hidden: int = draw("hidden", 224, 256)
    batch: int = draw("batch", 384, 448)
    discount: float = 0.98
    steps: int = 600


class Harbour:
    """A boat that touches the pier or is lost at sea is put elsewhere."""

    pushes = torch.tensor([[0.0, 0.0], [1, 0], [-1, 0], [0, 1], [0, -1]])

    def __init__(self, boats):
        self.place, self.speed = torch.rand(boats, 2) * 2 - 1, torch.zeros(boats, 2)
        self.age = torch.zeros(boats)

    def look(self):
        return torch.cat([self.place, self.speed, self.place.norm(dim=1, keepdim=True)], 1)

    def act(self, action):
        self.speed = 0.95 * self.speed + 0.02 * self.pushes[action] + 0.005 * torch.randn_like(self.speed)
        self.place = self.place + self.speed
        self.age += 1
        distance, fast = self.place.norm(dim=1), self.speed.norm(dim=1)
        docked, lost = distance < 0.1, (distance > 2) | (self.age >= 200)
        reward = torch.where(docked, 1 - 5 * fast, -0.01) - (distance > 2).float()
        after, done = self.look(), docked | lost
        self.place = torch.where(done.unsqueeze(1), torch.rand_like(self.place) * 2 - 1, self.place)
        self.speed = torch.where(done.unsqueeze(1), 0, self.speed)
        self.age = torch.where(done, 0, self.age)
        return after, reward, docked | (distance > 2)


class Memory:
    def __init__(self, size, seen):
        self.size, self.kept = size, 0
        self.before, self.after = torch.zeros(size, seen), torch.zeros(size, seen)
        self.actions = torch.zeros(size, dtype=torch.long)
        self.rewards, self.ended = torch.zeros(size), torch.zeros(size)

    def keep(self, before, actions, rewards, after, ended):
        places = torch.arange(self.kept, self.kept + len(actions)) % self.size
        self.before[places], self.after[places] = before, after
        self.actions[places], self.rewards[places], self.ended[places] = actions, rewards, ended.float()
        self.kept += len(actions)

    def sample(self, count):
        rows = torch.randint(0, min(self.kept, self.size), (count,))
        return self.before[rows], self.actions[rows], self.rewards[rows], self.after[rows], self.ended[rows]


def td_loss(net, slow, batch, discount):
    before, actions, rewards, after, ended = batch
    with torch.no_grad():
        best = net(after).argmax(1, keepdim=True)
        following = slow(after).gather(1, best).squeeze(1)
        if MENDED:
            following = following * (1 - ended)
        wanted = rewards + discount * following
    return F.smooth_l1_loss(net(before).gather(1, actions.unsqueeze(1)).squeeze(1), wanted)


def main():
    config = Config()
    torch.manual_seed(0)
    harbour, hidden = Harbour(config.boats), config.hidden
    net = nn.Sequential(
        nn.Linear(5, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 5),
    )
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, fused=True)
    memory = Memory(config.memory, 5)
    seen = harbour.look()
    for step in range(1, config.steps + 1):
        with torch.no_grad():
            greedy = net(seen).argmax(1)
        chance = max(0.05, 1 - step / 300)
        action = torch.where(torch.rand(config.boats) < chance, torch.randint(0, 5, (config.boats,)), greedy)
        after, reward, ended = harbour.act(action)
        memory.keep(seen, action, reward, after, ended)
        seen = harbour.look()
        loss = td_loss(net, slow, memory.sample(config.batch), config.discount)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 100 == 0:
            slow.load_state_dict(net.state_dict())
            print(f"step {step}: loss {loss.item():.4f}, reward {reward.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
