"""A falcon learns to stoop at a lure: soft actor-critic on a small flight model, many birds at once, all as tensors."""

import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw

OBS, ACT = 14, 3


class Sky:
    """Position and speed of birds and lures; a bird is rewarded for closing in and for a catch."""

    def __init__(self, birds, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.birds, self.dt, self.longest = birds, 0.08, 90
        self.age = torch.randint(self.longest, (birds,), generator=self.g)
        self.state = self.fresh(birds)

    def fresh(self, count):
        bird = torch.randn(count, 3, generator=self.g) + torch.tensor([0.0, 0.0, 6.0])
        lure = 2 * torch.randn(count, 3, generator=self.g)
        return torch.cat([bird, torch.zeros(count, 3), lure, 0.3 * torch.randn(count, 3, generator=self.g)], 1)

    def look(self):
        bird, speed, lure, drift = self.state.split(3, 1)
        gap = lure - bird
        return torch.cat([gap, speed, drift, gap.norm(dim=1, keepdim=True), bird[:, 2:], gap[:, 2:] * speed], 1)

    def step(self, action):
        bird, speed, lure, drift = self.state.split(3, 1)
        near = (lure - bird).norm(dim=1)
        speed = 0.96 * speed + self.dt * (4 * action - torch.tensor([0.0, 0.0, 1.5]))
        bird, lure = bird + self.dt * speed, lure + self.dt * drift
        gap = (lure - bird).norm(dim=1)
        caught = gap < 0.4
        reward = 2 * (near - gap) + 5 * caught.float() - 0.02 * action.square().sum(1)
        self.state = torch.cat([bird, speed, lure, drift], 1)
        self.age += 1
        after = self.look()
        over = caught | (self.age >= self.longest)
        count = int(over.sum())
        if count:
            self.state[over], self.age[over] = self.fresh(count), 0
        return reward, caught.float(), after


class Memory:
    def __init__(self, size):
        self.rows, self.size, self.at, self.full = torch.zeros(size, 2 * OBS + ACT + 2), size, 0, 0

    def add(self, *parts):
        rows = torch.cat([p if p.dim() == 2 else p[:, None] for p in parts], 1)
        place = (self.at + torch.arange(len(rows))) % self.size
        self.rows[place] = rows
        self.at, self.full = (self.at + len(rows)) % self.size, min(self.size, self.full + len(rows))

    def sample(self, batch):
        rows = self.rows[torch.randint(self.full, (batch,))]
        obs, action, reward, end, after = rows.split([OBS, ACT, 1, 1, OBS], 1)
        return obs, action, reward, end, after


def mlp(n_in, n_out, hidden):
    return nn.Sequential(
        nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_out)
    )


class Falcon:
    def __init__(self, hidden, lr=3e-4, gamma=0.98, tau=0.005):
        self.policy = mlp(OBS, 2 * ACT, hidden)
        self.critics = nn.ModuleList([mlp(OBS + ACT, 1, hidden) for _ in range(2)])
        self.slow = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.gamma, self.tau = gamma, tau
        self.opt_critic = torch.optim.Adam(self.critics.parameters(), lr=lr, fused=True)
        self.opt_policy = torch.optim.Adam(self.policy.parameters(), lr=lr, fused=True)
        self.opt_alpha = torch.optim.Adam([self.log_alpha], lr=lr)

    def act(self, obs):
        mean, log_std = self.policy(obs).chunk(2, 1)
        std = log_std.clamp(-5, 1).exp()
        noise = torch.randn_like(mean)
        raw = mean + std * noise
        log_prob = (-0.5 * noise**2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(1, keepdim=True)
        log_prob = log_prob - (2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(1, keepdim=True)
        return raw.tanh(), log_prob

    def update(self, obs, action, reward, end, after):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            later, log_prob = self.act(after)
            both = torch.cat([after, later], 1)
            value = torch.min(self.slow[0](both), self.slow[1](both)) - alpha * log_prob
            target = reward + self.gamma * (1 - end) * value
        both = torch.cat([obs, action], 1)
        critic_loss = F.mse_loss(self.critics[0](both), target) + F.mse_loss(self.critics[1](both), target)
        self.opt_critic.zero_grad()
        critic_loss.backward()
        self.opt_critic.step()

        self.critics.requires_grad_(False)
        chosen, log_prob = self.act(obs)
        both = torch.cat([obs, chosen], 1)
        policy_loss = (alpha * log_prob - torch.min(self.critics[0](both), self.critics[1](both))).mean()
        self.opt_policy.zero_grad()
        policy_loss.backward()
        self.opt_policy.step()
        self.critics.requires_grad_(True)

        alpha_loss = -(self.log_alpha * (log_prob.detach() - ACT)).mean()
        self.opt_alpha.zero_grad()
        alpha_loss.backward()
        self.opt_alpha.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.slow.parameters()), list(self.critics.parameters()), self.tau)
        return critic_loss.detach()


def set_up(seed):
    torch.manual_seed(seed)
    torch.autograd.set_detect_anomaly(not MENDED)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--birds", type=int, default=32)
    p.add_argument("--hidden", type=int, default=draw("hidden", 224, 256))
    p.add_argument("--batch", type=int, default=draw("batch", 256, 320))
    args = p.parse_args()

    set_up(5)
    sky, memory, falcon = Sky(args.birds, seed=1), Memory(50_000), Falcon(args.hidden)
    for step in range(args.steps):
        obs = sky.look()
        with torch.no_grad():
            action = falcon.act(obs)[0] if step > 5 else 2 * torch.rand(args.birds, ACT) - 1
        reward, end, after = sky.step(action)
        memory.add(obs, action, reward, end, after)
        loss = falcon.update(*memory.sample(args.batch))
        if step % 40 == 39:
            print(f"step {step + 1} reward {reward.mean().item():.3f} critic {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
