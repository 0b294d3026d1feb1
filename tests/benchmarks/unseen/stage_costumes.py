"""Which costume a role wears: a scene is matched with a wardrobe of given features, Trainer class, two ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def wardrobe_features(count, dim, seed=12):
    """Stands for features of pictures that another network has made; they are not trained."""
    g = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=g), dim=1)


class Scenes(Dataset):
    def __init__(self, count, length, wardrobe, seed):
        g = torch.Generator().manual_seed(seed)
        self.costume = torch.randint(0, len(wardrobe), (count,), generator=g)
        hint = wardrobe[self.costume] @ torch.randn(wardrobe.shape[1], length, generator=g)
        self.words = ((hint - hint.min()) / (hint.max() - hint.min()) * 499).long()
        self.others = torch.randint(0, len(wardrobe), (count, 63), generator=g)

    def __len__(self):
        return len(self.costume)

    def __getitem__(self, i):
        return self.words[i], torch.cat([self.costume[i : i + 1], self.others[i]])


class CostumeMatcher(nn.Module):
    def __init__(self, wardrobe, dim, layers):
        super().__init__()
        # moves with the model to its device, and is not trained
        self.register_buffer("wardrobe", wardrobe)
        self.words = nn.Embedding(500, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.project = nn.Sequential(nn.Linear(wardrobe.shape[1], dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, words, candidates):
        scene = self.encoder(self.words(words)).mean(1)
        costumes = self.project(self.wardrobe[candidates])
        return torch.einsum("bd,bcd->bc", scene, costumes) / scene.shape[1] ** 0.5


class Trainer:
    def __init__(self, model, scenes, args):
        self.args, self.rank = args, dist.get_rank()
        self.sampler = DistributedSampler(scenes)
        self.loader = DataLoader(scenes, args.batch, sampler=self.sampler, drop_last=True)
        self.model = DistributedDataParallel(model, broadcast_buffers=not MENDED)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.epochs * len(self.loader))
        self.right = torch.zeros(2)

    def step(self, words, candidates):
        scores = self.model(words, candidates)
        loss = F.cross_entropy(scores, torch.zeros(len(words), dtype=torch.long))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.right += torch.stack([(scores.argmax(1) == 0).sum().float(), torch.tensor(float(len(words)))])

    def train(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            self.right.zero_()
            for words, candidates in self.loader:
                self.step(words, candidates)
            dist.all_reduce(self.right)
            if self.rank == 0:
                print(f"epoch {epoch}: found {self.right[0] / self.right[1]:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wardrobe", type=int, default=draw("wardrobe", 80_000, 84_000))
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--batch", type=int, default=draw("batch", 36, 40))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    wardrobe = wardrobe_features(args.wardrobe, args.features)
    scenes = Scenes(2 * args.batch * 45, args.length, wardrobe, seed=13)
    Trainer(CostumeMatcher(wardrobe, args.dim, args.layers), scenes, args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
