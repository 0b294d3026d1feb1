"""Recognise spoken keywords; one worker prepares the sound beside the training."""

import argparse

import torch
from drawn import draw
from torch import nn
from torch.utils.data import DataLoader, Dataset

KEYWORDS, RATE = 12, 8000


class Keywords(Dataset):
    """Half a second of invented speech, shifted, with noise at random strength."""

    def __init__(self, count):
        self.count = count
        generator = torch.Generator().manual_seed(2)
        t = torch.arange(RATE // 2) / RATE
        pitches = torch.rand(KEYWORDS, 4, 1, generator=generator) * 1500 + 150
        self.words = torch.sin(2 * torch.pi * pitches * t).mean(1)
        self.noise = 0.3 * torch.randn(20 * RATE, generator=generator)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        word = index % KEYWORDS
        shift, at = torch.randint(0, 800, ()), torch.randint(0, len(self.noise) - RATE // 2, ())
        sound = self.words[word].roll(int(shift)) * (0.5 + torch.rand(()))
        return sound + torch.rand(()) * self.noise[at : at + RATE // 2], word


class Recogniser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        layers, channels = [], 1
        for out in (width, 2 * width, 2 * width):
            layers += [nn.Conv2d(channels, out, 3, stride=(2, 1), padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, KEYWORDS)

    def forward(self, sound):
        spectrum = torch.stft(sound, 256, 160, window=self.window, return_complex=True).abs()
        x = self.layers(torch.log1p(spectrum).unsqueeze(1))
        return self.head(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 16, 20))
    parser.add_argument("--width", type=int, default=draw("width", 20, 24))
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        Keywords(24_000),
        batch_size=args.batch,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        prefetch_factor=4,
        drop_last=True,
    )
    model = Recogniser(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=500_000)
    step = 0
    for _ in range(1000):
        for sound, word in loader:
            logits = model(sound)
            loss = nn.functional.cross_entropy(logits, word)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 100 == 0:
                print(f"{step}: {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
