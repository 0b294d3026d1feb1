"""A vole gathers roots in its burrows and hides from a weasel: double Q-learning, many burrows at once, as tensors."""

import argparse
import copy

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn

SIDE, MOVES, SIGHT = 12, 5, 3
OBS = 2 * (2 * SIGHT + 1) ** 2 + 5


class Burrows:
    """Tunnels on a grid. A round ends when the weasel is at the vole; a long round is broken off."""

    def __init__(self, count, longest, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.count, self.longest, self.rows = count, longest, torch.arange(count)
        wide = SIDE + 2 * SIGHT
        self.open, self.root = torch.zeros(count, wide, wide), torch.zeros(count, wide, wide)
        self.vole, self.weasel = torch.zeros(count, 2, dtype=torch.long), torch.zeros(count, 2, dtype=torch.long)
        self.age = torch.zeros(count, dtype=torch.long)
        self.shift = torch.tensor([[0, 0], [0, 1], [1, 0], [0, -1], [-1, 0]])
        view = torch.arange(-SIGHT, SIGHT + 1)
        self.view = torch.stack(torch.meshgrid(view, view, indexing="ij"), -1).view(1, -1, 2)
        self.dig(torch.ones(count, dtype=torch.bool))
        self.age = torch.randint(longest, (count,), generator=self.g)

    def dig(self, which):
        n = int(which.sum())
        inside = slice(SIGHT, SIGHT + SIDE)
        open_ = (torch.rand(n, SIDE, SIDE, generator=self.g) < 0.75).float()
        root = (torch.rand(n, SIDE, SIDE, generator=self.g) < 0.12).float()
        self.open[which, inside, inside], self.root[which, inside, inside] = open_, open_ * root
        self.vole[which] = SIGHT + torch.randint(SIDE // 2, (n, 2), generator=self.g)
        self.weasel[which] = SIGHT + SIDE // 2 + torch.randint(SIDE // 2, (n, 2), generator=self.g)
        self.age[which] = 0

    def look(self):
        at = self.vole.unsqueeze(1) + self.view
        row = self.rows.unsqueeze(1)
        near = [part[row, at[..., 0], at[..., 1]] for part in (self.open, self.root)]
        gap = (self.weasel - self.vole).float() / SIDE
        place = (self.vole - SIGHT).float() / SIDE
        return torch.cat([*near, gap, place, gap.abs().sum(1, keepdim=True)], 1)

    def moved(self, place, move):
        to = place + self.shift[move]
        free = self.open[self.rows, to[:, 0], to[:, 1]].bool()
        return torch.where(free.unsqueeze(1), to, place)

    def step(self, move):
        """Reward, whether the vole was caught, and what it sees before a new round is begun."""
        self.vole = self.moved(self.vole, move)
        gap = self.vole - self.weasel
        down = gap[:, 0].abs() >= gap[:, 1].abs()
        hunt = torch.where(down, torch.where(gap[:, 0] > 0, 2, 4), torch.where(gap[:, 1] > 0, 1, 3))
        stray = torch.randint(MOVES, (self.count,), generator=self.g)
        self.weasel = self.moved(self.weasel, torch.where(torch.rand(self.count, generator=self.g) < 0.5, hunt, stray))
        root = self.root[self.rows, self.vole[:, 0], self.vole[:, 1]]
        self.root[self.rows, self.vole[:, 0], self.vole[:, 1]] = 0
        caught = (self.vole == self.weasel).all(1)
        self.age += 1
        seen = self.look()
        self.dig(caught | (self.age >= self.longest))
        return root - 2 * caught.float() - 0.01, caught.float(), seen


class Memory:
    """The last moves in rings of tensors."""

    def __init__(self, size):
        self.size, self.at, self.full = size, 0, 0
        self.seen, self.then = torch.zeros(size, OBS), torch.zeros(size, OBS)
        self.move, self.reward, self.caught = torch.zeros(size, dtype=torch.long), torch.zeros(size), torch.zeros(size)

    def add(self, *rows):
        place = slice(self.at, self.at + len(rows[0]))
        for ring, row in zip((self.seen, self.move, self.reward, self.caught, self.then), rows, strict=True):
            ring[place] = row
        self.at = (self.at + len(rows[0])) % self.size
        self.full = min(self.full + len(rows[0]), self.size)

    def sample(self, count):
        rows = torch.randint(self.full, (count,))
        return [ring[rows] for ring in (self.seen, self.move, self.reward, self.caught, self.then)]


class QNet(nn.Module):
    """The worth of a place, and how much better a move is than the mean of all."""

    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.side, self.worth, self.better = nn.Linear(hidden, hidden), nn.Linear(hidden, 1), nn.Linear(hidden, MOVES)

    def forward(self, seen):
        x = self.body(seen)
        better = self.better(F.silu(self.side(x)))
        return self.worth(x) + better - better.mean(1, keepdim=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--burrows", type=int, default=64)
    p.add_argument("--hidden", type=int, default=draw("hidden", 640, 704))
    p.add_argument("--batch", type=int, default=draw("batch", 512, 576))
    p.add_argument("--gamma", type=float, default=0.95)
    p.add_argument("--tau", type=float, default=0.01)
    p.add_argument("--steps", type=int, default=240)
    args = p.parse_args()

    torch.manual_seed(77)
    burrows, memory = Burrows(args.burrows, longest=60, seed=1), Memory(64 * args.burrows * 4)
    online = QNet(args.hidden)
    slow = copy.deepcopy(online).requires_grad_(False)
    weights, followers = list(online.parameters()), list(slow.parameters())
    optimizer = torch.optim.AdamW(online.parameters(), lr=5e-4, weight_decay=1e-4, fused=True)
    gathered = torch.zeros(())
    seen = burrows.look()
    for step in range(-20, args.steps):
        chance = max(0.05, 1 - max(step, 0) / 120)
        with torch.no_grad():
            move = online(seen).argmax(1)
        move = torch.where(torch.rand(args.burrows) < chance, torch.randint(MOVES, (args.burrows,)), move)
        reward, caught, then = burrows.step(move)
        memory.add(seen, move, reward, caught, then)
        seen = burrows.look()
        gathered += reward.mean()
        if step < 0:
            continue
        before, move, reward, caught, then = memory.sample(args.batch)
        with torch.no_grad():
            best = online(then).argmax(1, keepdim=True)
            goal = reward + args.gamma * (1 - caught) * slow(then).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(online(before).gather(1, move.unsqueeze(1)).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(followers, weights, args.tau)
        if step % 60 == 59:
            print(f"step {step + 1} loss {loss.item():.4f} reward {gathered.item() / 60:.4f}", flush=True)
            gathered.zero_()


if __name__ == "__main__":
    main()
