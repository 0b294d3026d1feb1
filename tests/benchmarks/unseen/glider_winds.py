"""Double DQN for gliders that look for rising air; environments and replay are tensors. One process."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn


class Gliders:
    """Gliders on a line of thermals; to circle gains height where the air rises, to go on costs some."""

    def __init__(self, n, cells=40, seed=0):
        self.n, self.cells = n, cells
        self.gen = torch.Generator().manual_seed(seed)
        self.lift = torch.randn(n, cells, generator=self.gen)
        self.place = torch.randint(0, cells, (n,), generator=self.gen)
        self.height = torch.full((n,), 5.0)

    def observe(self):
        around = (self.place[:, None] + torch.arange(-4, 5)) % self.cells
        return torch.cat([self.lift.gather(1, around), self.height[:, None] / 10], 1)

    def step(self, action):
        lift_here = self.lift.gather(1, self.place[:, None]).squeeze(1)
        change = torch.where(action == 1, lift_here, torch.full_like(lift_here, -0.3))
        self.place = (self.place + action - 1) % self.cells
        self.height = (self.height + change).clamp(max=20)
        done = self.height <= 0
        reward = change - 5 * done
        fresh = torch.randint(0, self.cells, (self.n,), generator=self.gen)
        self.place = torch.where(done, fresh, self.place)
        self.height = torch.where(done, torch.full_like(self.height, 5.0), self.height)
        # thermals drift and fade
        self.lift = 0.98 * self.lift + 0.2 * torch.randn(self.lift.shape, generator=self.gen)
        return self.observe(), reward, done


class Replay:
    def __init__(self, capacity, obs):
        self.obs, self.following = torch.zeros(capacity, obs), torch.zeros(capacity, obs)
        self.action = torch.zeros(capacity, dtype=torch.long)
        self.reward, self.done = torch.zeros(capacity), torch.zeros(capacity)
        self.capacity, self.at, self.filled = capacity, 0, 0

    def add(self, obs, action, reward, following, done):
        rows = (self.at + torch.arange(len(obs))) % self.capacity
        self.obs[rows], self.following[rows] = obs, following
        self.action[rows], self.reward[rows], self.done[rows] = action, reward, done.float()
        self.at = (self.at + len(obs)) % self.capacity
        self.filled = min(self.filled + len(obs), self.capacity)

    def sample(self, count):
        rows = torch.randint(0, self.filled, (count,))
        return self.obs[rows], self.action[rows], self.reward[rows], self.following[rows], self.done[rows]


def make_net(obs, hidden):
    return nn.Sequential(
        nn.Linear(obs, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, 3),
    )


def learn(net, target, optimizer, batch, gamma=0.98):
    obs, action, reward, following, done = batch
    with torch.no_grad():
        best = net(following).argmax(1, keepdim=True)
        aim = reward + gamma * (1 - done) * target(following).gather(1, best).squeeze(1)
    value = net(obs).gather(1, action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, aim)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10)
    optimizer.step()
    return loss.detach()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--gliders", type=int, default=64)
    p.add_argument("--hidden", type=int, default=draw("hidden", 448, 512))
    p.add_argument("--batch", type=int, default=draw("batch", 512, 576))
    p.add_argument("--replay", type=int, default=20_000)
    p.add_argument("--updates", type=int, default=160)
    p.add_argument("--acts", type=int, default=2, help="steps of the gliders for each update")
    p.add_argument("--tau", type=float, default=0.01)
    args = p.parse_args()

    torch.manual_seed(4)
    env = Gliders(args.gliders)
    obs = env.observe()
    net, target = make_net(obs.shape[1], args.hidden), make_net(obs.shape[1], args.hidden)
    target.load_state_dict(net.state_dict())
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    replay = Replay(args.replay, obs.shape[1])
    gained = torch.zeros(())
    for update in range(-10, args.updates):
        epsilon = max(0.05, 1 - max(update, 0) / 100)
        for _ in range(args.acts):
            with torch.no_grad():
                action = net(obs).argmax(1)
            random = torch.randint(0, 3, action.shape)
            action = torch.where(torch.rand(len(action)) < epsilon, random, action)
            following, reward, done = env.step(action)
            replay.add(obs, action, reward, following, done)
            obs = following
            gained += reward.mean()
        if update < 0:
            continue
        loss = learn(net, target, optimizer, replay.sample(args.batch))
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), args.tau)
        if (update + 1) % 40 == 0:
            print(
                f"update {update + 1}: loss {loss.item():.4f}, reward {gained.item() / (40 * args.acts):.3f}",
                flush=True,
            )
            gained.zero_()


if __name__ == "__main__":
    main()
