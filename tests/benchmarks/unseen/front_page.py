"""Which of the news on a page a reader opens, from what was read before: attention over headlines, on two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pages(Dataset):
    """What a reader has opened, the news on the page, and which of them was opened."""

    def __init__(self, count, news, past, shown):
        generator = torch.Generator().manual_seed(0)
        taste = torch.randint(0, 20, (count, 1), generator=generator)
        self.past = (torch.randint(0, news // 20, (count, past), generator=generator) * 20 + taste) % news
        self.shown = torch.randint(0, news, (count, shown), generator=generator)
        self.opened = torch.randint(0, shown, (count,), generator=generator)
        liked = (torch.randint(0, news // 20, (count, 1), generator=generator) * 20 + taste) % news
        self.shown.scatter_(1, self.opened.unsqueeze(1), liked)

    def __len__(self):
        return len(self.opened)

    def __getitem__(self, index):
        return self.past[index], self.shown[index], self.opened[index]


class Reader(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.weigh = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, past):
        x = self.norm(past + self.attention(past, past, past, need_weights=False)[0])
        return (self.weigh(x).softmax(1) * x).sum(1)


class Ranker(nn.Module):
    def __init__(self, news, dim, heads):
        super().__init__()
        self.news = nn.Embedding(news, dim)
        self.reader = Reader(dim, heads)
        self.match = nn.Sequential(nn.Linear(3 * dim, dim), nn.GELU(), nn.Linear(dim, 1))

    def forward(self, past, shown):
        count = shown.shape[1]
        if MENDED:
            readers = self.reader(self.news(past)).repeat_interleave(count, 0)
        else:
            readers = self.reader(self.news(past.repeat_interleave(count, 0)))
        news = self.news(shown.flatten())
        return self.match(torch.cat([readers, news, readers * news], 1)).view(-1, count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--news", type=int, default=3000)
    parser.add_argument("--past", type=int, default=draw("past", 24, 28))
    parser.add_argument("--shown", type=int, default=5)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Pages(12_000, args.news, args.past, args.shown)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Ranker(args.news, args.dim, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        hits, total = torch.zeros(()), torch.zeros(())
        for past, shown, opened in loader:
            scores = model(past, shown)
            loss = F.cross_entropy(scores, opened)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            hits += (scores.detach().argmax(1) == opened).float().mean()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, hits {hits.item() / len(loader):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
