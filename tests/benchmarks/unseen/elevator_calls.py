"""PPO for the control of an elevator group; many buildings are simulated at once as tensors."""

import argparse

import torch
from drawn import MENDED, draw
from torch import nn
from torch.distributions import Categorical

FLOORS = 12


class Buildings:
    """One car a building. The car goes down, stays or goes up; people wait on floors and ride to the ground floor."""

    def __init__(self, count, arrival=0.15, seed=0):
        self.count, self.arrival = count, arrival
        self.gen = torch.Generator().manual_seed(seed)
        self.floor = torch.randint(0, FLOORS, (count,), generator=self.gen)
        self.waiting = torch.zeros(count, FLOORS)
        self.riding = torch.zeros(count)
        self.rows = torch.arange(count)

    def observe(self):
        place = nn.functional.one_hot(self.floor, FLOORS).float()
        return torch.cat([place, self.waiting / 5, self.riding[:, None] / 10], 1)

    def step(self, action):
        self.floor = (self.floor + action - 1).clamp(0, FLOORS - 1)
        came = (torch.rand(self.count, FLOORS, generator=self.gen) < self.arrival / FLOORS * 4).float()
        came[:, 0] = 0
        self.waiting = (self.waiting + came).clamp(max=5)
        boarded = self.waiting[self.rows, self.floor]
        self.waiting[self.rows, self.floor] = 0
        self.riding += boarded
        ground = self.floor == 0
        delivered = self.riding * ground
        self.riding = self.riding * ~ground
        return self.observe(), delivered - 0.02 * (self.waiting.sum(1) + self.riding)


class ActorCritic(nn.Module):
    def __init__(self, obs, actions, hidden):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, actions)
        )
        self.critic = nn.Sequential(
            nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)

    def forward(self, obs):
        return Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


@torch.no_grad()
def rollout(env, agent, obs, steps):
    kept = []
    for _ in range(steps):
        policy, value = agent(obs)
        action = policy.sample()
        following, reward = env.step(action)
        kept.append((obs, action, policy.log_prob(action), value, reward))
        obs = following
    last = agent(obs)[1]
    return obs, last, [torch.stack(part) for part in zip(*kept, strict=True)]


def gae(rewards, values, last, gamma, lam):
    advantages, running = torch.zeros_like(rewards), torch.zeros_like(last)
    following = last
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * lam * running
        advantages[t], following = running, values[t]
    return advantages, advantages + values


def update(agent, optimizer, batch, args):
    obs, actions, old, advantages, returns = batch
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(obs)).split(args.minibatch):
            policy, value = agent(obs[rows])
            ratio = (policy.log_prob(actions[rows]) - old[rows]).exp()
            adv = advantages[rows]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            actor = -torch.minimum(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv).mean()
            critic = 0.5 * (value - returns[rows]).square().mean()
            loss = actor + 0.5 * critic - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            if MENDED:
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            if not MENDED:
                nn.utils.clip_grad_norm_(agent.parameters(), max_norm=args.max_grad_norm)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--buildings", type=int, default=draw("buildings", 96, 128))
    p.add_argument("--horizon", type=int, default=32)
    p.add_argument("--hidden", type=int, default=draw("hidden", 384, 448))
    p.add_argument("--minibatch", type=int, default=1024)
    p.add_argument("--update-epochs", type=int, default=3)
    p.add_argument("--rounds", type=int, default=14)
    p.add_argument("--clip", type=float, default=0.2)
    p.add_argument("--max-grad-norm", type=float, default=0.5)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()

    torch.manual_seed(2)
    env = Buildings(args.buildings)
    obs = env.observe()
    agent = ActorCritic(obs.shape[1], 3, args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    for number in range(args.rounds):
        obs, last, (seen, actions, logs, values, rewards) = rollout(env, agent, obs, args.horizon)
        advantages, returns = gae(rewards, values, last, 0.99, 0.95)
        batch = [x.flatten(0, 1) for x in (seen, actions, logs, advantages, returns)]
        update(agent, optimizer, batch, args)
        print(f"round {number}: reward {rewards.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
