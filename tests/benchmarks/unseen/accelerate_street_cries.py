"""What a street seller sells, from a recording of the cry: recurrent network over mel frames, Accelerate."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

GOODS = ["milk", "knives ground", "oranges", "fish", "newspapers", "lavender", "chimneys swept"]
BANDS = 40


class Cries(Dataset):
    """Mel frames of cries, some short and some long."""

    def __init__(self, count, shortest, longest, seed):
        g = torch.Generator().manual_seed(seed)
        tune = torch.randn(len(GOODS), BANDS, generator=torch.Generator().manual_seed(21))
        self.good = torch.randint(len(GOODS), (count,), generator=g)
        self.frames = []
        for good in self.good.tolist():
            length = int(torch.randint(shortest, longest + 1, (1,), generator=g))
            sway = torch.sin(torch.arange(length)[:, None] / (3.0 + good))
            self.frames.append(0.5 * tune[good] * sway + torch.randn(length, BANDS, generator=g))

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i], int(self.good[i])


def collate(rows):
    frames = [row[0] for row in rows]
    length = torch.tensor([len(frame) for frame in frames])
    return pad_sequence(frames, batch_first=True), length, torch.tensor([row[1] for row in rows])


class CryNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.conv = nn.Conv1d(BANDS, hidden, 5, padding=2)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, len(GOODS))

    def forward(self, frames, length):
        x = F.gelu(self.conv(frames.transpose(1, 2)))
        x = self.gru(x.transpose(1, 2))[0]
        if MENDED:
            inside = (torch.arange(x.shape[1]) < length[:, None]).unsqueeze(2)
            pooled = (x * inside).sum(1) / length[:, None]
        else:
            pooled = x.mean(1)
        return self.out(self.norm(pooled))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shortest", type=int, default=20)
    parser.add_argument("--longest", type=int, default=draw("longest", 90, 100))
    parser.add_argument("--hidden", type=int, default=draw("hidden", 72, 80))
    parser.add_argument("--batch", type=int, default=14)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(31)
    train = Cries(2 * args.batch * 32, args.shortest, args.longest, seed=1)
    test = Cries(2 * args.batch * 4, args.shortest, args.longest, seed=2)
    loader = DataLoader(train, args.batch, shuffle=True, drop_last=True, collate_fn=collate)
    check = DataLoader(test, args.batch, collate_fn=collate)
    model = CryNet(args.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.01)
    model, optimizer, loader, check = accelerator.prepare(model, optimizer, loader, check)
    for epoch in range(args.epochs):
        for frames, length, good in loader:
            loss = F.cross_entropy(model(frames, length), good)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        right = []
        with torch.no_grad():
            for frames, length, good in check:
                right.append(accelerator.gather_for_metrics(model(frames, length).argmax(1) == good))
        model.train()
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f} right {torch.cat(right).float().mean().item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
