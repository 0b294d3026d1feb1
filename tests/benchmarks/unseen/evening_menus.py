"""Rank dishes for guests from what they ate before: attention over the history, on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Evenings(Dataset):
    """A guest's history, the dish chosen next, and dishes that were not, drawn anew each time."""

    def __init__(self, count, dishes, length, negatives):
        generator = torch.Generator().manual_seed(41)
        taste = torch.randint(0, dishes, (count, 1), generator=generator)
        self.eaten = (taste + torch.randint(0, 25, (count, length + 1), generator=generator)) % dishes
        self.dishes, self.negatives = dishes, negatives

    def __len__(self):
        return len(self.eaten)

    def __getitems__(self, rows):
        eaten = self.eaten[rows]
        others = torch.randint(0, self.dishes, (len(rows), self.negatives))
        return eaten[:, :-1], torch.cat([eaten[:, -1:], others], 1)


class Menus(nn.Module):
    def __init__(self, dishes, dim, length):
        super().__init__()
        self.dishes = nn.Embedding(dishes, dim)
        self.bias = nn.Embedding(dishes, 1)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        block = nn.TransformerEncoderLayer(dim, 2, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        nn.init.zeros_(self.bias.weight)

    def forward(self, history, candidates):
        guest = self.encoder(self.dishes(history) + self.places)[:, -1]
        scores = torch.einsum("bd,bcd->bc", guest, self.dishes(candidates))
        return scores * guest.shape[1] ** -0.5 + self.bias(candidates).squeeze(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dishes", type=int, default=draw("dishes", 2500, 3000))
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--length", type=int, default=draw("length", 16, 18))
    parser.add_argument("--negatives", type=int, default=40)
    parser.add_argument("--batch", type=int, default=144)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Menus(args.dishes, args.dim, args.length), gradient_as_bucket_view=True)
    torch.manual_seed(1 + dist.get_rank())
    data = Evenings(16_000, args.dishes, args.length, args.negatives)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True, collate_fn=lambda batch: batch)
    tables = [p for name, p in model.named_parameters() if "dishes" in name or "bias.weight" in name]
    inner = [p for name, p in model.named_parameters() if not ("dishes" in name or "bias.weight" in name)]
    optimizer = torch.optim.Adam([{"params": tables, "lr": 3e-3}, {"params": inner, "lr": 1e-3}], fused=True)
    first = torch.zeros(args.batch, dtype=torch.long)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2)
        for history, candidates in loader:
            scores = model(history, candidates)
            loss = F.cross_entropy(scores, first)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([loss.detach(), (scores.detach().argmax(1) == 0).float().mean()])
        dist.all_reduce(sums)
        if dist.get_rank() == 0:
            loss, hits = (sums / len(loader) / dist.get_world_size()).tolist()
            print(f"epoch {epoch}: {loss:.4f}, chosen first {hits:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
