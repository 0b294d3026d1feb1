"""Which tool a household rents next: two towers, negatives from the batch with a correction, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import draw
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

TOOLS, KINDS, PAST, FACTS = 3000, 40, 10, 16


def rentals(count, seed):
    """Facts on a household, its last tools, the next tool: tools of a kind follow each other."""
    g = torch.Generator().manual_seed(seed)
    shared = torch.Generator().manual_seed(34)
    facts = torch.randn(count, FACTS, generator=g)
    liking = (facts @ torch.randn(FACTS, KINDS, generator=shared)).softmax(1)
    kind = torch.multinomial(liking, PAST + 1, replacement=True, generator=g)
    rank = torch.rand(count, PAST + 1, generator=g) ** 3 * (TOOLS // KINDS)
    tool = kind * (TOOLS // KINDS) + rank.long()
    return facts, tool[:, :-1], tool[:, -1]


class Towers(nn.Module):
    def __init__(self, dim, hidden, share):
        super().__init__()
        self.tool = nn.Embedding(TOOLS, dim)
        nn.init.normal_(self.tool.weight, std=0.05)
        self.place = nn.Parameter(torch.zeros(PAST))
        self.household = nn.Sequential(
            nn.Linear(dim + FACTS, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, dim)
        )
        self.item = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.register_buffer("log_share", share.log(), persistent=False)

    def items(self, tool):
        return F.normalize(self.item(self.tool(tool)), dim=-1)

    def users(self, facts, past):
        seen = (self.place.softmax(0).unsqueeze(1) * self.tool(past)).sum(1)
        return F.normalize(self.household(torch.cat([seen, facts], 1)), dim=1)

    def forward(self, facts, past, tool):
        """Scores of the tools of a batch for its households, less the logarithm of how common a tool is."""
        score = 12 * self.users(facts, past) @ self.items(tool).T - self.log_share[tool]
        same = tool.unsqueeze(0) == tool.unsqueeze(1)
        same.fill_diagonal_(False)
        return F.cross_entropy(score.masked_fill(same, -1e4), torch.arange(len(tool)))


@torch.no_grad()
def recall(accelerator, model, check, top=20):
    """How often the next tool is among the first of all tools."""
    plain = accelerator.unwrap_model(model).eval()
    every = plain.items(torch.arange(TOOLS))
    hits = []
    for facts, past, tool in check:
        best = (plain.users(facts, past) @ every.T).topk(top, 1).indices
        hits.append(accelerator.gather_for_metrics((best == tool.unsqueeze(1)).any(1)))
    model.train()
    return torch.cat(hits).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 320, 384))
    parser.add_argument("--batch", type=int, default=draw("batch", 384, 448))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(35)
    world, rank = accelerator.num_processes, accelerator.process_index
    train, test = rentals(40 * world * args.batch, seed=1), TensorDataset(*rentals(8 * args.batch, seed=2))
    share = torch.bincount(train[2], minlength=TOOLS).clamp(min=1) / len(train[2])
    mine = TensorDataset(*(part[rank::world] for part in train))
    batches = BatchSampler(RandomSampler(mine), args.batch, drop_last=True)
    loader = DataLoader(mine, batch_size=None, sampler=batches)
    model = Towers(args.dim, args.hidden, share)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3, fused=True)
    model, optimizer, check = accelerator.prepare(model, optimizer, DataLoader(test, args.batch))
    for epoch in range(args.epochs):
        for facts, past, tool in loader:
            loss = model(facts, past, tool)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        found = recall(accelerator, model, check)
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} recall {found:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
