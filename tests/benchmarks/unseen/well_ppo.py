"""PPO on many pendulums at once, one process."""

import argparse

import torch
from drawn import draw
from torch import nn
from torch.distributions import Normal


class Pendulums:
    """Swing up: the angle from upright costs, so does spin and torque."""

    def __init__(self, count):
        self.angle = torch.empty(count).uniform_(-3.14, 3.14)
        self.spin = torch.empty(count).uniform_(-1, 1)

    def observe(self):
        return torch.stack([self.angle.cos(), self.angle.sin(), self.spin], 1)

    def step(self, torque):
        torque = torque.clamp(-2, 2)
        angle = torch.remainder(self.angle + 3.1416, 6.2832) - 3.1416
        cost = angle.square() + 0.1 * self.spin.square() + 0.001 * torque.square()
        self.spin = (self.spin + 0.05 * (15 * self.angle.sin() + 3 * torque)).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.spin
        return -cost


class Agent(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )
        self.critic = nn.Sequential(
            nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )
        self.log_spread = nn.Parameter(torch.zeros(1))

    def play(self, x):
        return Normal(self.actor(x).squeeze(-1), self.log_spread.exp())

    def value(self, x):
        return self.critic(x).squeeze(-1)


@torch.no_grad()
def rollout(agent, world, horizon, gamma, smooth):
    seen, acts, odds, rewards, values = [], [], [], [], []
    for _ in range(horizon):
        x = world.observe()
        play = agent.play(x)
        act = play.sample()
        seen.append(x)
        acts.append(act)
        odds.append(play.log_prob(act))
        values.append(agent.value(x))
        rewards.append(world.step(act))
    after, gain, gains = agent.value(world.observe()), 0.0, []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        gain = reward + gamma * after - value + gamma * smooth * gain
        after = value
        gains.append(gain)
    gains = torch.stack(gains[::-1])
    return [
        t.flatten(0, 1)
        for t in (torch.stack(seen), torch.stack(acts), torch.stack(odds), gains, gains + torch.stack(values))
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=draw("worlds", 64, 96))
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 320, 384))
    parser.add_argument("--batch", type=int, default=draw("batch", 1024, 1536))
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    world, agent = Pendulums(args.worlds), Agent(args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
    for update in range(1_000_000):
        data = rollout(agent, world, args.horizon, 0.95, 0.9)
        for _ in range(args.rounds):
            for at in torch.randperm(len(data[0])).split(args.batch):
                x, act, odds, gain, returns = (column[at] for column in data)
                play = agent.play(x)
                ratio = (play.log_prob(act) - odds).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.5 * (agent.value(x) - returns).square().mean() - 0.001 * play.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if update % 10 == 0:
            print(f"{update}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
