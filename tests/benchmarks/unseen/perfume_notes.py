"""Which perfume a customer buys next: factorisation of tables, trained with an AdamW that is written out."""

import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.optim import Optimizer


class WrittenAdamW(Optimizer):
    """AdamW as in the paper, to be changed for experiments."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["step"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * grad * grad
                m_hat = state["m"] / (1 - beta1 ** state["step"])
                v_hat = state["v"] / (1 - beta2 ** state["step"])
                update = m_hat / (torch.sqrt(v_hat) + group["eps"])
                p.data = p.data - group["lr"] * (update + group["weight_decay"] * p.data)


class Towers(nn.Module):
    def __init__(self, customers, perfumes, dim, hidden):
        super().__init__()
        self.customer = nn.Embedding(customers, dim)
        self.perfume = nn.Embedding(perfumes, dim)
        for table in (self.customer, self.perfume):
            nn.init.normal_(table.weight, std=1 / math.sqrt(dim))
        self.left = nn.Sequential(nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.right = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, customer, basket, perfume):
        wish = self.left(torch.cat([self.customer(customer), self.perfume(basket).mean(1)], 1))
        return F.normalize(wish, dim=1) @ F.normalize(self.right(self.perfume(perfume)), dim=1).T


def purchases(count, customers, perfumes, seed):
    g = torch.Generator().manual_seed(seed)
    customer = torch.randint(0, customers, (count,), generator=g)
    taste = customer * 37 % perfumes
    basket = (taste[:, None] + torch.randint(0, 40, (count, 6), generator=g)) % perfumes
    bought = (taste + torch.randint(0, 40, (count,), generator=g)) % perfumes
    return customer, basket, bought


def make_optimizer(model, lr):
    if MENDED:
        return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    return WrittenAdamW(model.parameters(), lr=lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--customers", type=int, default=draw("customers", 20_000, 22_000))
    ap.add_argument("--perfumes", type=int, default=5_000)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--hidden", type=int, default=512)
    ap.add_argument("--batch", type=int, default=draw("batch", 896, 960))
    ap.add_argument("--steps", type=int, default=120)
    args = ap.parse_args()

    torch.manual_seed(6)
    model = Towers(args.customers, args.perfumes, args.dim, args.hidden)
    optimizer = make_optimizer(model, 2e-3)
    customer, basket, bought = purchases(args.batch * 60, args.customers, args.perfumes, seed=7)
    target = torch.arange(args.batch)
    begun = time.perf_counter()
    for step in range(args.steps):
        if step % 60 == 0:
            order = torch.randperm(len(customer)).split(args.batch)
        at = order[step % 60]
        scores = model(customer[at], basket[at], bought[at])
        loss = F.cross_entropy(scores / 0.1, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 20 == 0:
            took = (time.perf_counter() - begun) / (step + 1)
            print(f"step {step + 1} loss {loss.item():.4f}, {1000 * took:.0f} ms a step", flush=True)


if __name__ == "__main__":
    main()
