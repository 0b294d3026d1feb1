"""Sort letters to an authority by topic; batches of like length, dealt out in turn so that ranks keep step."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

WORDS, TOPICS = 2500, 10


class Letters(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.topics = torch.randint(0, TOPICS, (count,), generator=generator).tolist()
        lengths = torch.randint(24, 73, (count,), generator=generator).tolist()
        self.texts = [torch.randint(20, WORDS, (length,), generator=generator) for length in lengths]
        for text, topic in zip(self.texts, self.topics, strict=True):
            text[::6] = 1 + topic

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], self.topics[index]


class Buckets(Sampler):
    """Shuffles, sorts by length within large chunks, and gives neighbouring batches to the ranks of one step."""

    def __init__(self, lengths, batch, chunk=20):
        self.lengths, self.batch, self.chunk = torch.tensor(lengths), batch, chunk
        self.rank, self.world, self.epoch = dist.get_rank(), dist.get_world_size(), 0

    def __len__(self):
        return len(self.lengths) // (self.batch * self.world)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        pieces = order.split(self.batch * self.world * self.chunk)
        order = torch.cat([piece[self.lengths[piece].argsort()] for piece in pieces])
        rounds = order[: len(self) * self.batch * self.world].view(len(self), self.world, self.batch)
        for at in torch.randperm(len(self), generator=generator).tolist():
            yield rounds[at, self.rank].tolist()


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([text for text, _ in rows], batch_first=True)
    return ids, torch.tensor([topic for _, topic in rows])


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim, padding_idx=0)
        self.layers = nn.ModuleList(nn.Conv1d(dim, dim, 5, padding=2) for _ in range(3))
        self.weigh, self.head = nn.Linear(dim, 1), nn.Linear(dim, TOPICS)

    def forward(self, ids):
        x = self.words(ids).transpose(1, 2)
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        x = x.transpose(1, 2)
        weights = self.weigh(x).masked_fill((ids == 0).unsqueeze(2), -1e9).softmax(1)
        return self.head((weights * x).sum(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--batch", type=int, default=draw("batch", 20, 24))
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Letters(3600)
    buckets = Buckets([len(text) for text in data.texts], args.batch)
    loader = DataLoader(data, batch_sampler=buckets, collate_fn=collate)
    model = DDP(Reader(args.dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        buckets.epoch = epoch
        total = torch.zeros(())
        for ids, topics in loader:
            loss = F.cross_entropy(model(ids), topics)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
