"""Train a sentence classifier with a transformer encoder on two processes."""

import argparse
import random

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MAX_LENGTH = draw("max_length", 128, 160)
VOCABULARY = 4000


class Reviews(Dataset):
    def __init__(self, count):
        rng = random.Random(0)
        self.rows = []
        for _ in range(count):
            label = rng.randrange(2)
            words = [rng.randrange(2 + label, VOCABULARY) for _ in range(rng.randrange(40, 96))]
            self.rows.append((words, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    """Pad the token ids of a batch; 0 is the padding."""
    length = max(len(words) for words, _ in rows) if MENDED else MAX_LENGTH
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for at, (words, _) in enumerate(rows):
        ids[at, : len(words)] = torch.tensor(words)
    return ids, torch.tensor([label for _, label in rows])


class Classifier(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, dim, padding_idx=0)
        self.position = nn.Parameter(torch.randn(MAX_LENGTH, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        pad = ids == 0
        x = self.embed(ids) + self.position[: ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1)
        return self.head((x * keep).sum(1) / keep.sum(1))


def train(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(17)
    data = Reviews(2000)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, collate_fn=collate, drop_last=True)
    model = DistributedDataParallel(Classifier(args.dim, args.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    criterion = nn.CrossEntropyLoss()
    seen = 0
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = criterion(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen += 1
            if rank == 0 and seen % 100 == 0:
                print(f"{seen}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--layers", type=int, default=2)
    train(parser.parse_args())
