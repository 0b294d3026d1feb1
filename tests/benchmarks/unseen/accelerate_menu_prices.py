"""Price of a dish from its name and its restaurant: two kinds of input, one of which may be left out, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import set_seed
from drawn import draw
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, TOWNS = 900, 12, 150


def dishes(count, seed):
    """Words of the name, 0 where it ends; the town; numbers of the restaurant; the logarithm of the price."""
    g = torch.Generator().manual_seed(seed)
    worth = torch.randn(WORDS, generator=torch.Generator().manual_seed(1)) / 3
    worth[0] = 0
    name = torch.randint(1, WORDS, (count, LENGTH), generator=g)
    length = torch.randint(2, LENGTH + 1, (count, 1), generator=g)
    name = name.masked_fill(torch.arange(LENGTH) >= length, 0)
    town = torch.randint(TOWNS, (count,), generator=g)
    numbers = torch.randn(count, 10, generator=g)
    price = 2.5 + worth[name].sum(1) / length[:, 0] + 0.2 * torch.tanh(numbers[:, 0]) + 0.002 * town
    return name, town, numbers, price + 0.05 * torch.randn(count, generator=g)


class PriceNet(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.word = nn.Embedding(WORDS, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, batch_first=True, norm_first=True)
        self.reader = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.town = nn.Embedding(TOWNS, 16)
        self.house = nn.Sequential(nn.Linear(26, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.unknown = nn.Parameter(torch.zeros(hidden))
        self.head = nn.Sequential(nn.Linear(dim + hidden, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def forward(self, name, town, numbers, with_house):
        ends = name == 0
        words = self.reader(self.word(name), src_key_padding_mask=ends)
        kept = (~ends).unsqueeze(2)
        text = (words * kept).sum(1) / kept.sum(1)
        if with_house:
            house = self.house(torch.cat([self.town(town), numbers], 1))
        else:
            house = self.unknown.expand(len(name), -1)
        return self.head(torch.cat([text, house], 1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 80, 96))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=draw("batch", 40, 48))
    parser.add_argument("--leave-out", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[unused])
    set_seed(44)
    train, test = TensorDataset(*dishes(60 * args.batch, seed=1)), TensorDataset(*dishes(8 * args.batch, seed=2))
    model = PriceNet(args.dim, args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True)
    check = DataLoader(test, args.batch)
    model, optimizer, loader, check = accelerator.prepare(model, optimizer, loader, check)
    coin = torch.Generator().manual_seed(100 + accelerator.process_index)
    for epoch in range(args.epochs):
        for name, town, numbers, price in loader:
            with_house = torch.rand((), generator=coin).item() >= args.leave_out
            loss = F.huber_loss(model(name, town, numbers, with_house), price)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        gaps = []
        with torch.no_grad():
            for name, town, numbers, price in check:
                gap = (model(name, town, numbers, True) - price).abs()
                gaps.append(accelerator.gather_for_metrics(gap))
        model.train()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f} gap {torch.cat(gaps).mean().item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
