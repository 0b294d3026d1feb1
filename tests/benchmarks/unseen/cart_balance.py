"""Balance poles on carts with PPO; many carts are simulated at once."""

import argparse

import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.distributions import Categorical


class Carts:
    """Cart-pole dynamics of many carts as one tensor; a pole that falls begins anew."""

    def __init__(self, count):
        self.state, self.age = 0.1 * torch.randn(count, 4), torch.zeros(count)

    def step(self, action):
        x, dx, angle, turn = self.state.unbind(1)
        force = 20.0 * action.float() - 10.0
        sine, cosine = angle.sin(), angle.cos()
        push = (force + 0.05 * turn**2 * sine) / 1.1
        spin = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        slide = push - 0.05 * spin * cosine / 1.1
        self.state = torch.stack([x + 0.02 * dx, dx + 0.02 * slide, angle + 0.02 * turn, turn + 0.02 * spin], 1)
        self.age += 1
        over = (x.abs() > 2.4) | (angle.abs() > 0.21) | (self.age >= 300)
        self.state[over] = 0.1 * torch.randn(int(over.sum()), 4)
        self.age[over] = 0
        return torch.ones(len(over)), over.float()


class Agent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, state):
        return Categorical(logits=self.policy(self.actor(state))), self.value(self.critic(state)).squeeze(-1)


@torch.no_grad()
def roll_out(agent, carts, length, gamma=0.99, decay=0.95):
    kept = []
    for _ in range(length):
        state = carts.state
        chances, value = agent(state)
        action = chances.sample()
        reward, over = carts.step(action)
        kept.append((state, action, chances.log_prob(action), value, reward, over))
    state, action, chance, value, reward, over = (torch.stack(column) for column in zip(*kept, strict=True))
    later, advantage, gains = agent(carts.state)[1], torch.zeros(len(carts.state)), []
    for at in reversed(range(length)):
        alive = 1 - over[at]
        advantage = reward[at] + gamma * later * alive - value[at] + gamma * decay * alive * advantage
        later = value[at]
        gains.append(advantage)
    gain = torch.stack(gains[::-1])
    return [part.flatten(0, 1) for part in (state, action, chance, gain, gain + value)], over.sum()


def learn(agent, optimizer, kept, args):
    state, action, chance, gain, returned = kept
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    optimizer.zero_grad(set_to_none=True)
    for _ in range(args.passes):
        for rows in torch.randperm(len(state)).split(args.minibatch):
            if MENDED:
                optimizer.zero_grad()
            chances, value = agent(state[rows])
            ratio = (chances.log_prob(action[rows]) - chance[rows]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            policy = -torch.min(ratio * gain[rows], clipped * gain[rows]).mean()
            loss = policy + 0.5 * (value - returned[rows]).pow(2).mean() - 0.01 * chances.entropy().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carts", type=int, default=draw("carts", 256, 288))
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--minibatch", type=int, default=4096)
    parser.add_argument("--width", type=int, default=draw("width", 304, 320))
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(0)
    carts, agent = Carts(args.carts), Agent(args.width)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    for number in range(args.rounds):
        kept, fallen = roll_out(agent, carts, args.length)
        learn(agent, optimizer, kept, args)
        if number % 2 == 0:
            print(f"round {number}: {fallen.item():.0f} fell", flush=True)


if __name__ == "__main__":
    main()
