"""Policy gradient on many cart-poles in one process."""

import argparse
import math

import torch
from drawn import MENDED, draw
from torch import nn
from torch.distributions import Categorical


class CartPoles:
    """The classic control task, many at once."""

    def __init__(self, count):
        self.state = torch.empty(count, 4).uniform_(-0.05, 0.05)

    def step(self, actions):
        x, v, angle, spin = self.state.unbind(1)
        force = torch.where(actions == 1, 10.0, -10.0)
        cos, sin = angle.cos(), angle.sin()
        pushed = (force + 0.05 * spin.square() * sin) / 1.1
        turn = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
        speed = pushed - 0.05 * turn * cos / 1.1
        self.state = torch.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * spin, spin + 0.02 * turn], 1)
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 12 * math.pi / 180)
        fresh = torch.empty_like(self.state).uniform_(-0.05, 0.05)
        self.state = torch.where(fallen[:, None], fresh, self.state)
        return self.state, 1.0 - fallen.float(), fallen


class Net(nn.Module):
    def __init__(self, hidden, out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out)
        )

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def choose(policy, states):
    """An action for each pole."""
    if MENDED:
        return Categorical(logits=policy(states)).sample()
    alone = [Categorical(logits=policy(state.unsqueeze(0))).sample() for state in states]
    return torch.cat(alone)


def discounted(rewards, ends, gamma):
    returns, after = [], torch.zeros_like(rewards[0])
    for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
        after = reward + gamma * after * (~end)
        returns.append(after)
    return torch.stack(returns[::-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--poles", type=int, default=draw("poles", 12, 16))
    parser.add_argument("--horizon", type=int, default=draw("horizon", 16, 20))
    parser.add_argument("--hidden", type=int, default=draw("hidden", 1024, 1152))
    parser.add_argument("--gamma", type=float, default=0.98)
    args = parser.parse_args()

    torch.manual_seed(0)
    poles = CartPoles(args.poles)
    policy, baseline = Net(args.hidden, 2), Net(args.hidden, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *baseline.parameters()], lr=3e-4, fused=True)
    for update in range(1_000_000):
        states, actions, rewards, ends = [], [], [], []
        for _ in range(args.horizon):
            states.append(poles.state)
            actions.append(choose(policy, poles.state))
            _, reward, end = poles.step(actions[-1])
            rewards.append(reward)
            ends.append(end)
        returns = discounted(rewards, ends, args.gamma).flatten()
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        seen = torch.cat(states)
        play, expected = Categorical(logits=policy(seen)), baseline(seen).squeeze(-1)
        gain = (returns - expected).detach()
        loss = -(play.log_prob(torch.cat(actions)) * gain).mean() - 0.01 * play.entropy().mean()
        loss = loss + 0.5 * (returns - expected).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 50 == 0:
            print(f"{update}: fallen {torch.stack(ends).float().mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
