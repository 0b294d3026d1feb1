"""Train a document encoder on texts of very different lengths, DDP."""

import argparse
import random

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Documents(Dataset):
    def __init__(self, count, longest):
        rng = random.Random(3)
        self.texts = []
        for _ in range(count):
            length = int(longest * rng.betavariate(1.2, 2.2)) + 12
            self.texts.append([rng.randrange(1, 3000) for _ in range(length)])

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return torch.tensor(self.texts[index])


class ByLength(Sampler):
    """Texts of about one length together, so that little is padded; each process has its share."""

    def __init__(self, data, batch, rank, world):
        order = sorted(range(len(data)), key=lambda index: len(data.texts[index]))
        order = order[: len(order) // (batch * world) * batch * world]
        batches = [order[at : at + batch] for at in range(0, len(order), batch)]
        share = len(batches) // world
        self.batches = batches[rank::world] if MENDED else batches[rank * share : (rank + 1) * share]
        self.epoch = 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        order = list(range(len(self.batches)))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return iter([self.batches[at] for at in order])


def collate(texts):
    return pad_sequence(texts, batch_first=True)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(3000, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 3000)

    def forward(self, ids):
        hidden = self.encoder(self.embed(ids), src_key_padding_mask=ids == 0)
        return self.out(hidden.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    parser.add_argument("--longest", type=int, default=draw("longest", 200, 240))
    parser.add_argument("--dim", type=int, default=96)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Documents(3000, args.longest)
    loader = DataLoader(data, batch_sampler=ByLength(data, args.batch, rank, dist.get_world_size()), collate_fn=collate)
    model = DDP(Encoder(args.dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(10_000):
        for ids in loader:
            bag = torch.zeros(len(ids), 3000).scatter_(1, ids, 1.0)
            loss = nn.functional.binary_cross_entropy_with_logits(model(ids), bag)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
