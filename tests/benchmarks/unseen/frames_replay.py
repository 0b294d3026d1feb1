"""Deep Q-learning with prioritised replay on a small game of catch."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw, mended

SIZE, STACK, ENVS = 16, 2, 16
BATCH = draw("batch", 64, 80)
CAPACITY = draw("capacity", 120_000, 140_000)
GAMMA, BETA, ALPHA = 0.98, 0.4, 0.6


class Catch:
    """Many games at once: a ball falls, a paddle moves below it."""

    def __init__(self, count):
        self.rng = np.random.default_rng(3)
        self.count = count
        self.ball = np.stack([self.rng.integers(0, SIZE, count), self.rng.integers(0, SIZE - 2, count)], 1)
        self.paddle = np.full(count, SIZE // 2)
        self.frames = np.zeros((count, STACK, SIZE, SIZE), np.uint8)

    def step(self, actions):
        self.paddle = np.clip(self.paddle + actions - 1, 0, SIZE - 1)
        self.ball[:, 1] += 1
        done = self.ball[:, 1] == SIZE - 1
        caught = np.abs(self.ball[:, 0] - self.paddle) <= 1
        reward = np.where(done, np.where(caught, 1.0, -1.0), 0.0).astype(np.float32)
        self.ball[done] = np.stack([self.rng.integers(0, SIZE, done.sum()), np.zeros(done.sum(), int)], 1)
        frame = np.zeros((self.count, SIZE, SIZE), np.uint8)
        rows = np.arange(self.count)
        frame[rows, self.ball[:, 1], self.ball[:, 0]] = 255
        frame[rows, SIZE - 1, self.paddle] = 255
        self.frames = np.concatenate([self.frames[:, 1:], frame[:, None]], 1)
        return self.frames, reward, done


class SumTree:
    def __init__(self, capacity):
        self.leaves = 1 << (capacity - 1).bit_length()
        self.nodes = np.zeros(2 * self.leaves)

    def set(self, at, values):
        at = np.asarray(at) + self.leaves
        self.nodes[at] = values
        while at[0] > 1:
            at = at // 2
            self.nodes[at] = self.nodes[2 * at] + self.nodes[2 * at + 1]

    def draw(self, count):
        at = np.ones(count, int)
        mass = (np.arange(count) + np.random.rand(count)) / count * self.nodes[1]
        while at[0] < self.leaves:
            left = self.nodes[2 * at]
            right = mass > left
            mass = np.where(right, mass - left, mass)
            at = 2 * at + right
        return at - self.leaves, self.nodes[at] / self.nodes[1]


class PrioritisedReplay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.transitions = [None] * capacity
        self.priorities = [0.0] * capacity
        self.tree = SumTree(capacity)
        self.filled, self.position = 0, 0

    def push(self, many):
        where = (self.position + np.arange(len(many))) % self.capacity
        for at, transition in zip(where, many, strict=True):
            self.transitions[at] = transition
        self.set(where, np.ones(len(many)))
        self.position = int(where[-1] + 1) % self.capacity
        self.filled = min(self.filled + len(many), self.capacity)

    def set(self, where, priorities):
        if mended(1):
            self.tree.set(where, priorities**ALPHA)
        else:
            for at, priority in zip(where.tolist(), priorities.tolist(), strict=True):
                self.priorities[at] = priority

    def pick(self, count):
        if mended(1):
            return self.tree.draw(count)
        scaled = np.array(self.priorities[: self.filled]) ** ALPHA
        chances = scaled / scaled.sum()
        chosen = np.random.choice(self.filled, count, p=chances)
        return chosen, chances[chosen]

    def sample(self, count):
        chosen, chances = self.pick(count)
        states, actions, rewards, following, ends = zip(*(self.transitions[at] for at in chosen), strict=True)
        weights = (self.filled * chances) ** -BETA
        return (
            chosen,
            to_tensor(states) / 255,
            torch.tensor(actions),
            torch.tensor(rewards, dtype=torch.float32),
            to_tensor(following) / 255,
            torch.tensor(ends, dtype=torch.float32),
            torch.as_tensor(weights / weights.max(), dtype=torch.float32),
        )


def to_tensor(arrays):
    if mended(2):
        return torch.from_numpy(np.stack(arrays)).float()
    return torch.tensor(arrays, dtype=torch.float32)


class QNetwork(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(STACK, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * (SIZE // 2) ** 2, 128),
            nn.ReLU(),
        )
        self.value, self.advantage = nn.Linear(128, 1), nn.Linear(128, 3)

    def forward(self, x):
        x = self.body(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


def act(q, frames, epsilon):
    with torch.no_grad():
        best = q(torch.from_numpy(frames).float() / 255).argmax(1).numpy()
    return np.where(np.random.rand(len(best)) < epsilon, np.random.randint(0, 3, len(best)), best)


def play(games, replay, actions):
    before = games.frames
    after, rewards, ends = games.step(actions)
    replay.push(list(zip(before, actions.tolist(), rewards.tolist(), after, ends.tolist(), strict=True)))


def main():
    torch.manual_seed(5)
    np.random.seed(5)
    games, replay = Catch(ENVS), PrioritisedReplay(CAPACITY)
    q, target = QNetwork(draw("width", 16, 20)), QNetwork(draw("width", 16, 20))
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=2.5e-4)
    while replay.filled < CAPACITY:
        play(games, replay, np.random.randint(0, 3, ENVS))
    step = 0
    while True:
        play(games, replay, act(q, games.frames, max(0.05, 1 - step / 5000)))
        chosen, states, actions, rewards, following, ends, weights = replay.sample(BATCH)
        with torch.no_grad():
            best = q(following).argmax(1, keepdim=True)
            wanted = rewards + GAMMA * (1 - ends) * target(following).gather(1, best).squeeze(1)
        values = q(states).gather(1, actions[:, None]).squeeze(1)
        loss = (weights * F.smooth_l1_loss(values, wanted, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.set(chosen, (values - wanted).detach().abs().numpy().astype(np.float64) + 1e-3)
        step += 1
        if step % 1000 == 0:
            target.load_state_dict(q.state_dict())
        if step % 100 == 0:
            print(f"{step}: loss {loss.item():.4f}, reward {rewards.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
