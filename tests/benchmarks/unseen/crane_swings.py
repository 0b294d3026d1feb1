"""A crane that must not let its load swing: PPO with a small policy, own environment."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.distributions import Normal


@dataclass
class Config:
    envs: int = 4
    horizon: int = draw("horizon", 44, 52)
    hidden: int = draw("hidden", 256, 288)
    minibatches: int = 1
    updates: int = 110
    epochs: int = 1
    gamma: float = 0.98
    lam: float = 0.95
    clip: float = 0.2
    lr: float = 3e-4


class Crane:
    """A trolley on a rail with a load on a rope; the action is the force on the trolley."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.state = np.array([self.rng.uniform(-1, 1), 0.0, self.rng.uniform(-0.3, 0.3), 0.0], dtype=np.float32)
        self.age = 0
        return self.state.copy()

    def step(self, force):
        x, v, angle, spin = self.state
        force = float(np.clip(force, -2, 2))
        v += 0.05 * (force - 0.1 * v)
        spin += 0.05 * (-9.8 * np.sin(angle) - force * np.cos(angle) - 0.05 * spin)
        self.state = np.array([x + 0.05 * v, v, angle + 0.05 * spin, spin], dtype=np.float32)
        self.age += 1
        reward = 1.0 - abs(x) - 0.5 * abs(angle) - 0.01 * force**2
        done = self.age >= 100 or abs(x) > 3
        return self.state.copy(), reward, done


class Policy(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mean, self.value = nn.Linear(hidden, 1), nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def forward(self, obs):
        h = self.body(obs)
        return Normal(self.mean(h).squeeze(-1), self.log_std.exp()), self.value(h).squeeze(-1)

    @torch.no_grad()
    def act(self, obs):
        dist, value = self(obs)
        action = dist.sample()
        return action, dist.log_prob(action), value


def act_for_each(policy, obs):
    picked = [policy.act(torch.from_numpy(one)) for one in obs]
    return [torch.stack(column) for column in zip(*picked, strict=True)]


def act_together(policy, obs):
    return policy.act(torch.from_numpy(np.stack(obs)))


def collect(policy, envs, obs, cfg):
    kept = {name: [] for name in ("obs", "action", "logp", "value", "reward", "done")}
    choose = act_together if MENDED else act_for_each
    for _ in range(cfg.horizon):
        action, logp, value = choose(policy, obs)
        kept["obs"].append(torch.from_numpy(np.stack(obs)))
        rewards, dones = [], []
        for at, (env, force) in enumerate(zip(envs, action.tolist(), strict=True)):
            obs[at], reward, done = env.step(force)
            if done:
                obs[at] = env.reset()
            rewards.append(reward)
            dones.append(float(done))
        for name, data in (("action", action), ("logp", logp), ("value", value)):
            kept[name].append(data)
        kept["reward"].append(torch.tensor(rewards, dtype=torch.float32))
        kept["done"].append(torch.tensor(dones))
    return {name: torch.stack(rows) for name, rows in kept.items()}, obs


def advantages(batch, last, cfg):
    out, running = torch.zeros_like(batch["reward"]), torch.zeros_like(last)
    following = last
    for t in reversed(range(cfg.horizon)):
        going_on = 1 - batch["done"][t]
        delta = batch["reward"][t] + cfg.gamma * going_on * following - batch["value"][t]
        running = delta + cfg.gamma * cfg.lam * going_on * running
        out[t], following = running, batch["value"][t]
    return out


def update(policy, optimizer, batch, gain, cfg):
    flat = {name: rows.flatten(0, 1) for name, rows in batch.items()}
    gain, returns = gain.flatten(), (gain + batch["value"]).flatten()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    dist, value = policy(flat["obs"])
    ratio = (dist.log_prob(flat["action"]) - flat["logp"]).exp()
    surrogate = torch.min(ratio * gain, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * gain)
    loss = -surrogate.mean() + 0.5 * (value - returns).pow(2).mean() - 0.005 * dist.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()


def main():
    cfg = Config()
    torch.manual_seed(2)
    envs = [Crane(seed) for seed in range(cfg.envs)]
    obs = [env.reset() for env in envs]
    policy = Policy(cfg.hidden)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    for iteration in range(cfg.updates):
        batch, obs = collect(policy, envs, obs, cfg)
        with torch.no_grad():
            last = policy(torch.from_numpy(np.stack(obs)))[1]
        update(policy, optimizer, batch, advantages(batch, last, cfg), cfg)
        if iteration % 20 == 0:
            print(f"update {iteration} reward {batch['reward'].mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
