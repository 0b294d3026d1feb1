"""Fine-tune a text encoder: first only the head, then also the upper layers."""

import argparse

import torch
import torch.distributed as dist
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, LENGTH = 3000, 40


class Encoder(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class Classifier(nn.Module):
    def __init__(self, dim, depth, classes):
        super().__init__()
        self.encoder = Encoder(dim, depth)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.head(self.encoder(ids))

    def freeze(self):
        self.encoder.requires_grad_(False)

    def unfreeze(self, count):
        for layer in self.encoder.layers[-count:]:
            layer.requires_grad_(True)


def complaints(count):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    return TensorDataset(ids, (ids[:, :8].sum(1) % 7))


class Finetuning:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(11)
        self.network = Classifier(args.dim, args.depth, 7)
        self.network.freeze()
        self.model = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.AdamW(self.network.head.parameters(), lr=args.lr)
        data = complaints(6000)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=args.batch, sampler=self.sampler, drop_last=True)

    def begin_second_phase(self):
        self.network.unfreeze(self.args.upper)
        if MENDED:
            self.model = DistributedDataParallel(self.network)
        added = [p for p in self.network.encoder.parameters() if p.requires_grad]
        self.optimizer.add_param_group({"params": added, "lr": self.args.lr / 5})
        if self.rank == 0:
            print(f"training {sum(p.numel() for p in added)} weights of the encoder as well", flush=True)

    def run(self):
        step = 0
        for epoch in range(10_000):
            self.sampler.set_epoch(epoch)
            for ids, labels in self.loader:
                if step == self.args.head_steps:
                    self.begin_second_phase()
                loss = nn.functional.cross_entropy(self.model(ids), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                if self.rank == 0 and step % 100 == 0:
                    print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 112))
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--upper", type=int, default=2)
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    parser.add_argument("--head-steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=1e-3)
    dist.init_process_group("gloo")
    Finetuning(parser.parse_args()).run()
