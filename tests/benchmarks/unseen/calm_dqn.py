"""Double Q-learning for many carts at once; the memory is one block of tensors."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn


@dataclass
class Config:
    carts: int = 64
    memory: int = 50_000
    batch: int = draw("batch", 768, 896)
    width: int = draw("width", 288, 320)
    gamma: float = 0.98
    lr: float = 3e-4
    steps: int = 900


class Carts:
    """Balance poles; all are moved in one go."""

    def __init__(self, count):
        self.count = count
        self.state = torch.empty(count, 4).uniform_(-0.05, 0.05)

    def step(self, actions):
        x, speed, angle, turn = self.state.unbind(1)
        force = 20.0 * actions - 10.0
        pull = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * pull) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        push = pull - 0.05 * bend * angle.cos() / 1.1
        state = torch.stack([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend], 1)
        done = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.21)
        before, after = self.state, state.clone()
        state[done] = torch.empty(int(done.sum()), 4).uniform_(-0.05, 0.05)
        self.state = state
        return before, after, 1.0 - done.float(), done.float()


class Memory:
    def __init__(self, size):
        self.size, self.at, self.filled = size, 0, 0
        self.before, self.after = torch.zeros(size, 4), torch.zeros(size, 4)
        self.actions = torch.zeros(size, dtype=torch.long)
        self.rewards, self.done = torch.zeros(size), torch.zeros(size)

    def add(self, before, actions, after, rewards, done):
        places = (self.at + torch.arange(len(before))) % self.size
        self.before[places], self.after[places] = before, after
        self.actions[places], self.rewards[places], self.done[places] = actions, rewards, done
        self.at = (self.at + len(before)) % self.size
        self.filled = min(self.size, self.filled + len(before))

    def sample(self, count):
        chosen = torch.randint(0, self.filled, (count,))
        return tuple(all_[chosen] for all_ in (self.before, self.actions, self.after, self.rewards, self.done))


def network(width):
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 2),
    )  # fmt: skip


@torch.no_grad()
def act(online, state, chance):
    greedy = online(state).argmax(1)
    return torch.where(torch.rand(len(state)) < chance, torch.randint(0, 2, (len(state),)), greedy)


def loss_of(online, target, batch, gamma):
    before, actions, after, rewards, done = batch
    with torch.no_grad():
        best = online(after).argmax(1, keepdim=True)
        wanted = rewards + gamma * (1 - done) * target(after).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(online(before).gather(1, actions.unsqueeze(1)).squeeze(1), wanted)


def main():
    config = Config()
    torch.manual_seed(0)
    carts, memory = Carts(config.carts), Memory(config.memory)
    online, target = network(config.width), network(config.width)
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=config.lr, fused=True)
    while memory.filled < 4 * config.batch:
        actions = torch.randint(0, 2, (config.carts,))
        before, after, rewards, done = carts.step(actions)
        memory.add(before, actions, after, rewards, done)
    fallen = torch.zeros(())
    for step in range(1, config.steps + 1):
        actions = act(online, carts.state, max(0.05, 1 - step / 500))
        before, after, rewards, done = carts.step(actions)
        memory.add(before, actions, after, rewards, done)
        fallen += done.sum()
        loss = loss_of(online, target, memory.sample(config.batch), config.gamma)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            target.load_state_dict(online.state_dict())
            print(f"step {step}: {loss.item():.4f}, fallen {int(fallen.item())}", flush=True)
            fallen.zero_()


if __name__ == "__main__":
    main()
