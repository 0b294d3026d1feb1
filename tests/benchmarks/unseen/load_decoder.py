"""Forecast the load of transformers in a power grid: a transformer reads two days and writes the hours ahead."""

import argparse

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Load(Dataset):
    def __init__(self, hours, past, ahead):
        generator = torch.Generator().manual_seed(6)
        t = torch.arange(hours)
        daily, weekly = torch.sin(t * 6.28 / 24), torch.sin(t * 6.28 / 168)
        self.values = (daily + 0.5 * weekly + 0.2 * torch.randn(hours, generator=generator)).unsqueeze(1)
        self.past, self.ahead = past, ahead

    def __len__(self):
        return len(self.values) - self.past - self.ahead

    def __getitem__(self, index):
        middle = index + self.past
        return self.values[index:middle], self.values[middle - 1 : middle + self.ahead]


class Forecaster(nn.Module):
    def __init__(self, dim, layers, past, ahead):
        super().__init__()
        self.enter, self.leave = nn.Linear(1, dim), nn.Linear(dim, 1)
        self.before = nn.Parameter(0.02 * torch.randn(past, dim))
        self.after = nn.Parameter(0.02 * torch.randn(ahead, dim))
        layer = {"d_model": dim, "nhead": 4, "dim_feedforward": 2 * dim, "dropout": 0.1, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), layers)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), layers)

    def decode(self, written, memory):
        n = written.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.leave(self.decoder(self.enter(written) + self.after[:n], memory, tgt_mask=mask))

    def forward(self, past, target):
        """Each hour from the days before and the hours ahead of it."""
        memory = self.encoder(self.enter(past) + self.before)
        if MENDED:
            return self.decode(target[:, :-1], memory)
        hours = []
        for hour in range(1, target.shape[1]):
            written = self.decode(target[:, :hour], memory)
            hours.append(written[:, -1:])
        return torch.cat(hours, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--past", type=int, default=48)
    parser.add_argument("--ahead", type=int, default=10)
    parser.add_argument("--dim", type=int, default=draw("dim", 48, 64))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 8, 10))
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Load(20_000, args.past, args.ahead)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(Forecaster(args.dim, args.layers, args.past, args.ahead))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for past, target in loader:
            loss = nn.functional.mse_loss(model(past, target), target[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 40 == 0 and dist.get_rank() == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)
            if step == args.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
