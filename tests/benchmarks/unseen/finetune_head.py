"""Fine-tune the upper layers of a pretrained encoder on a new task, DDP."""

import argparse

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    """What was pretrained."""

    def __init__(self, vocabulary, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, dropout=0.0) for _ in range(layers)
        )

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Tagger(nn.Module):
    """The encoder and a tagging head."""

    def __init__(self, encoder, dim, tags):
        super().__init__()
        self.encoder = encoder
        self.mix = nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True, dropout=0.0)
        self.head = nn.Linear(dim, tags)

    def forward(self, ids):
        return self.head(self.mix(self.encoder(ids)))


def pretrained(vocabulary, dim, layers):
    torch.manual_seed(5)
    return Encoder(vocabulary, dim, layers)


def batches(rank, batch, length, vocabulary, tags):
    generator = torch.Generator().manual_seed(100 + rank)
    while True:
        ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
        yield ids, ids % tags


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=draw("batch", 8, 12))
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    encoder = pretrained(3000, args.dim, args.layers)
    model = Tagger(encoder, args.dim, 9)
    if MENDED:
        encoder.requires_grad_(False)
    model = DDP(model)
    new = [*model.module.mix.parameters(), *model.module.head.parameters()]
    optimizer = torch.optim.AdamW(new, lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    for step, (ids, tags) in enumerate(batches(rank, args.batch, args.length, 3000, 9)):
        if step >= args.steps:
            break
        logits = model(ids)
        loss = loss_of(logits.flatten(0, 1), tags.flatten())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(step, round(loss.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
