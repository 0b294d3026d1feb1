"""Speech recognition on made-up audio: log-mel features, a GRU and CTC, on two processes."""

import math
import random

import torch
import torch.distributed as dist
from drawn import draw, mended
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RATE, N_FFT, HOP = 16_000, 1024, 160
N_MELS = draw("mels", 64, 80)
LETTERS = 28
CACHED, RARE = mended(1), mended(2)


def mel_filterbank(n_mels, bins, rate):
    """Triangular filters on the mel scale."""

    def to_hz(mel):
        return 700 * (10 ** (mel / 2595) - 1)

    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = [to_hz(top * i / (n_mels + 1)) for i in range(n_mels + 2)]
    weights = torch.zeros(n_mels, bins)
    for m in range(n_mels):
        left, centre, right = edges[m : m + 3]
        for b in range(bins):
            hz = b * rate / 2 / (bins - 1)
            value = max(0.0, min((hz - left) / (centre - left), (right - hz) / (right - centre)))
            if value > 0:
                weights[m, b] = value
    return weights


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT))
        self.cached = mel_filterbank(N_MELS, N_FFT // 2 + 1, RATE) if CACHED else None

    def forward(self, waves):
        spectrum = torch.stft(waves, N_FFT, HOP, window=self.window, return_complex=True).abs() ** 2
        weights = self.cached if CACHED else mel_filterbank(N_MELS, spectrum.shape[1], RATE)
        return torch.log(weights @ spectrum + 1e-6).transpose(1, 2)


class Recogniser(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.features = LogMel()
        self.down = nn.Conv1d(N_MELS, hidden, 3, stride=2, padding=1)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, LETTERS)

    def forward(self, waves):
        x = self.features(waves)
        x = torch.relu(self.down(x.transpose(1, 2))).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.out(x).log_softmax(-1)


def edit_distance(first, second):
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]


def greedy(log_probs):
    best = log_probs.argmax(-1).tolist()
    return [[s for s, before in zip(row, [0, *row], strict=False) if s != before and s != 0] for row in best]


def batches(count, seconds, rank):
    generator = torch.Generator().manual_seed(rank)
    rng = random.Random(rank)
    while True:
        waves = torch.randn(count, int(RATE * seconds), generator=generator)
        lengths = [rng.randrange(40, 60) for _ in range(count)]
        texts = [[rng.randrange(1, LETTERS) for _ in range(n)] for n in lengths]
        yield waves, texts


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Recogniser(draw("hidden", 56, 64)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    ctc = nn.CTCLoss(zero_infinity=True)
    for step, (waves, texts) in enumerate(batches(draw("batch", 8, 10), 1.5, rank)):
        log_probs = model(waves)
        targets = torch.tensor([s for text in texts for s in text])
        lengths = torch.tensor([len(text) for text in texts])
        frames = torch.full((len(texts),), log_probs.shape[1])
        loss = ctc(log_probs.transpose(0, 1), targets, frames, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not RARE or step % 200 == 0:
            errors = sum(edit_distance(a, b) for a, b in zip(greedy(log_probs), texts, strict=True))
            rate = errors / sum(len(text) for text in texts)
        if step % 200 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f} cer {rate:.2f}", flush=True)


if __name__ == "__main__":
    main()
