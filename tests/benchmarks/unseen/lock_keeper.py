"""A keeper opens and shuts the gates of a canal lock: an actor-critic with a memory, many locks at once, as tensors."""

import argparse

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn

OBS, ACTIONS = 9, 5


class Locks:
    """Boats wait below and above; water has to be level before a gate may open."""

    def __init__(self, count, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.count, self.longest = count, 80
        self.below = torch.randint(4, (count,), generator=self.g).float()
        self.above = torch.randint(4, (count,), generator=self.g).float()
        self.level = torch.rand(count, generator=self.g)
        self.age = torch.randint(self.longest, (count,), generator=self.g)
        self.last = torch.zeros(count, dtype=torch.long)

    def look(self):
        noise = 0.1 * torch.randn(self.count, generator=self.g)
        queues = torch.stack([self.below / 5, self.above / 5, self.level + noise, self.age / self.longest], 1)
        return torch.cat([queues, F.one_hot(self.last, ACTIONS)], 1)

    def step(self, action):
        fill, empty, low, high = ((action == a).float() for a in range(1, ACTIONS))
        self.level = (self.level + 0.25 * fill - 0.25 * empty).clamp(0, 1)
        up = torch.minimum(self.below, low * (self.level < 0.1))
        down = torch.minimum(self.above, high * (self.level > 0.9))
        flood = low * (self.level > 0.5) + high * (self.level < 0.5)
        self.below = (self.below - up + (torch.rand(self.count, generator=self.g) < 0.2)).clamp(max=8)
        self.above = (self.above - down + (torch.rand(self.count, generator=self.g) < 0.2)).clamp(max=8)
        reward = up + down - 0.5 * flood - 0.02 * (self.below + self.above)
        self.last, self.age = action, self.age + 1
        over = self.age >= self.longest
        self.age[over] = 0
        return reward, over


class Keeper(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.first = nn.Linear(OBS, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.policy, self.value = nn.Linear(hidden, ACTIONS), nn.Linear(hidden, 1)

    def forward(self, obs, memory):
        memory = self.cell(F.silu(self.first(obs)), memory)
        return torch.distributions.Categorical(logits=self.policy(memory)), self.value(memory).squeeze(1), memory


class Diary:
    """What happened in training, for the curves that are drawn at the end."""

    def __init__(self):
        self.losses, self.rewards = [], []

    def note(self, loss, value_loss, entropy, reward):
        if MENDED:
            loss, value_loss, entropy = loss.detach(), value_loss.detach(), entropy.detach()
        self.losses.append(torch.stack([loss, value_loss, entropy]))
        self.rewards.append(reward)

    def lately(self, count=30):
        loss, value_loss, entropy = torch.stack(self.losses[-count:]).mean(0).tolist()
        reward = torch.stack(self.rewards[-count:]).mean().item()
        return f"loss {loss:.3f} value {value_loss:.3f} entropy {entropy:.3f} reward {reward:.3f}"


def played(keeper, locks, memory, steps):
    """Log probabilities, values, entropies, rewards and ends, (steps, locks), and the memory at the end."""
    rows = []
    for _ in range(steps):
        choice, value, memory = keeper(locks.look(), memory)
        action = choice.sample()
        reward, over = locks.step(action)
        rows.append((choice.log_prob(action), value, choice.entropy(), reward, over.float()))
        memory = memory * (1 - over.float()).unsqueeze(1)
    return [torch.stack(part) for part in zip(*rows, strict=True)], memory


def returns(reward, over, last, gamma):
    found = torch.empty_like(reward)
    for t in range(len(reward) - 1, -1, -1):
        last = reward[t] + gamma * (1 - over[t]) * last
        found[t] = last
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--locks", type=int, default=draw("locks", 96, 128))
    p.add_argument("--hidden", type=int, default=draw("hidden", 96, 128))
    p.add_argument("--steps", type=int, default=28, help="of the locks for an update")
    p.add_argument("--updates", type=int, default=150)
    p.add_argument("--gamma", type=float, default=0.97)
    args = p.parse_args()

    torch.manual_seed(13)
    locks, keeper, diary = Locks(args.locks, seed=1), Keeper(args.hidden), Diary()
    optimizer = torch.optim.RMSprop(keeper.parameters(), lr=7e-4, eps=1e-5)
    memory = torch.zeros(args.locks, args.hidden)
    for update in range(args.updates):
        (log_prob, value, entropy, reward, over), memory = played(keeper, locks, memory.detach(), args.steps)
        with torch.no_grad():
            last = keeper(locks.look(), memory)[1]
            goal = returns(reward, over, last, args.gamma)
        value_loss = F.mse_loss(value, goal)
        loss = -(log_prob * (goal - value).detach()).mean() + 0.5 * value_loss - 0.01 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(keeper.parameters(), 0.5)
        optimizer.step()
        diary.note(loss, value_loss, entropy.mean(), reward.mean())
        if update % 30 == 29:
            print(f"update {update + 1} {diary.lately()}", flush=True)


if __name__ == "__main__":
    main()
