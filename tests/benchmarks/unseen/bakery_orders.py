"""Recommend what a bakery's customers order next: factors learned from pairs, on two ranks."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP


def write_orders(customers, goods, each):
    """What every customer has ordered, near a taste of their own."""
    rng = random.Random(17)
    orders = []
    for _ in range(customers):
        taste = rng.randrange(goods)
        orders.append({(taste + int(rng.gauss(0, goods / 40))) % goods for _ in range(each)})
    return orders


class Factors(nn.Module):
    def __init__(self, customers, goods, dim, hidden):
        super().__init__()
        self.customers = nn.Embedding(customers, dim)
        self.goods = nn.Embedding(goods, dim)
        self.tower = nn.Sequential(
            nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, customer, good):
        """Scores of goods (N, K) for customers (N)."""
        who = self.customers(customer).unsqueeze(1).expand(-1, good.shape[1], -1)
        return self.tower(torch.cat([who, self.goods(good)], dim=-1)).squeeze(-1)


class Sampler:
    """Orders, and goods that the customer has not ordered."""

    def __init__(self, orders, goods, negatives, seed):
        self.orders = orders
        self.pairs = [(customer, good) for customer, had in enumerate(orders) for good in sorted(had)]
        self.goods = goods
        self.negatives = negatives
        self.rng = random.Random(seed)
        self.had = torch.zeros(len(orders), goods, dtype=torch.bool)
        for customer, good in self.pairs:
            self.had[customer, good] = True

    def unordered(self, customers):
        if MENDED:
            drawn = torch.randint(0, self.goods, (len(customers), self.negatives))
            taken = self.had[customers.unsqueeze(1), drawn]
            while taken.any():
                drawn[taken] = torch.randint(0, self.goods, (int(taken.sum()),))
                taken = self.had[customers.unsqueeze(1), drawn]
            return drawn
        rows = []
        for customer in customers:
            row = []
            while len(row) < self.negatives:
                good = self.rng.randrange(self.goods)
                if good not in self.orders[customer.item()]:
                    row.append(good)
            rows.append(torch.tensor(row))
        return torch.stack(rows)

    def batch(self, size):
        pairs = torch.tensor(self.rng.choices(self.pairs, k=size))
        customers, ordered = pairs.unbind(1)
        return customers, torch.cat([ordered.unsqueeze(1), self.unordered(customers)], dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, default=3000)
    parser.add_argument("--goods", type=int, default=1200)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 96, 104))
    parser.add_argument("--batch", type=int, default=draw("batch", 640, 672))
    parser.add_argument("--negatives", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    orders = write_orders(args.customers, args.goods, 20)
    torch.manual_seed(0)
    model = DDP(Factors(args.customers, args.goods, args.dim, args.hidden))
    torch.manual_seed(100 + rank)
    sampler = Sampler(orders, args.goods, args.negatives, seed=100 + rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    first = torch.zeros(args.batch, dtype=torch.long)
    for step in range(1, args.steps + 1):
        customers, goods = sampler.batch(args.batch)
        loss = F.cross_entropy(model(customers, goods), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0 and rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
