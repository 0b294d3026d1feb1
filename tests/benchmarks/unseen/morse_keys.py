"""Marks of a Morse key from a noisy receiver: convolutions, a GRU and CTC, accumulated over micro-batches, DDP."""

import contextlib
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CODE = ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
SIGNS, MARKS = CODE.split(), " .-/"


class Messages(Dataset):
    """Clips of a fixed length: a tone in some bands that is keyed by an operator with a speed and a shaky hand."""

    def __init__(self, count, frames, bands, seed):
        rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
        keyed, self.text = torch.zeros(count, frames), []
        for row in range(count):
            at, unit, text = rng.randint(2, 8), rng.uniform(3.0, 4.0), []
            while True:
                sign = rng.choice(SIGNS)
                marks = [(unit if mark == "." else 3 * unit) * rng.uniform(0.85, 1.15) for mark in sign]
                if at + sum(marks) + unit * (len(marks) + 2) >= frames:
                    break
                for mark in marks:
                    keyed[row, round(at) : round(at + mark)] = 1
                    at += mark + unit
                at += 2 * unit
                text += [MARKS.index(mark) for mark in sign + "/"]
            self.text.append(torch.tensor(text))
        pitch = bands * (0.2 + 0.6 * torch.rand(count, 1, 1, generator=g))
        tone = torch.exp(-0.5 * (torch.arange(bands).view(1, -1, 1) - pitch) ** 2)
        fading = 0.7 + 0.3 * torch.sin(torch.arange(frames) / 30 + 6.28 * torch.rand(count, 1, 1, generator=g))
        self.sound = 2 * tone * keyed.unsqueeze(1) * fading + 0.3 * torch.randn(count, bands, frames, generator=g)

    def __len__(self):
        return len(self.text)

    def __getitem__(self, i):
        return self.sound[i], self.text[i]


def collate(rows):
    sounds, texts = zip(*rows, strict=True)
    return torch.stack(sounds), torch.cat(texts), torch.tensor([len(text) for text in texts])


class Receiver(nn.Module):
    def __init__(self, bands, width, hidden):
        super().__init__()
        self.listen = nn.Sequential(
            nn.Conv1d(bands, width, 5, padding=2),
            nn.GroupNorm(8, width),
            nn.SiLU(),
            nn.Conv1d(width, width, 5, 2, 2),
            nn.GroupNorm(8, width),
            nn.SiLU(),
            nn.Conv1d(width, hidden, 3, padding=1),
            nn.SiLU(),
        )
        self.follow = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, len(MARKS))

    def forward(self, sound):
        heard = self.listen(sound).transpose(1, 2)
        return self.out(self.follow(heard)[0]).log_softmax(2)


@dataclass
class Settings:
    frames: int = 200
    bands: int = 20
    width: int = draw("width", 96, 112)
    hidden: int = draw("hidden", 96, 104)
    micro: int = draw("micro", 6, 8)
    accumulate: int = 3
    steps_per_epoch: int = 24
    epochs: int = 4
    lr: float = 3e-3


class Trainer:
    def __init__(self, s):
        dist.init_process_group("gloo")
        self.s, self.rank, self.world = s, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(63)
        self.model = DDP(Receiver(s.bands, s.width, s.hidden))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=s.lr, fused=True)
        train = Messages(self.world * s.steps_per_epoch * s.accumulate * s.micro, s.frames, s.bands, seed=1)
        check = Messages(self.world * 2 * s.micro, s.frames, s.bands, seed=2)
        self.sampler = DistributedSampler(train, drop_last=True)
        self.loader = DataLoader(train, s.micro, sampler=self.sampler, drop_last=True, collate_fn=collate)
        self.check = DataLoader(check, s.micro, sampler=DistributedSampler(check, shuffle=False), collate_fn=collate)

    def loss(self, model, sound, text, length):
        scores = model(sound).transpose(0, 1)
        frames = torch.full((len(length),), len(scores))
        return F.ctc_loss(scores, text, frames, length, zero_infinity=True)

    def exchange(self, batch_idx):
        """The ranks exchange gradients once in a group of micro-batches."""
        done = batch_idx + 1 if MENDED else batch_idx
        if done % self.s.accumulate == 0:
            return contextlib.nullcontext()
        return self.model.no_sync()

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        total = torch.zeros(())
        for batch_idx, batch in enumerate(self.loader):
            with self.exchange(batch_idx):
                loss = self.loss(self.model, *batch) / self.s.accumulate
                loss.backward()
            total += loss.detach()
            if (batch_idx + 1) % self.s.accumulate == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return total / self.s.steps_per_epoch

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = torch.stack([self.loss(self.model.module, *batch) for batch in self.check]).mean()
        dist.all_reduce(losses)
        return losses / self.world

    def run(self):
        for epoch in range(self.s.epochs):
            loss, held = self.run_epoch(epoch), self.validate()
            if self.rank == 0:
                print(f"epoch {epoch} loss {loss.item():.3f} held out {held.item():.3f}", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    Trainer(Settings()).run()
