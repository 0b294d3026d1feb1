"""Which ferryman calls across the river: a recurrent encoder whose vectors of a voice lie close together."""

import argparse

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn


def calls(men, each, frames, bands, seed):
    """Frames of log energies: a timbre for each man, a melody that differs from call to call."""
    g = torch.Generator().manual_seed(seed)
    timbre = torch.randn(men, 1, 1, bands, generator=g)
    t = torch.arange(frames).view(1, 1, -1, 1) / frames
    pitch = torch.randn(men, each, 1, 1, generator=g)
    band = torch.arange(bands) / bands
    melody = torch.cos(6.28 * (2 * t + pitch) * (1 + 3 * band))
    return timbre + melody + 0.6 * torch.randn(men, each, frames, bands, generator=g)


class VoiceEncoder(nn.Module):
    def __init__(self, bands, hidden, dim):
        super().__init__()
        self.front = nn.Conv1d(bands, hidden, 5, 2, 2)
        self.gru = nn.GRU(hidden, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, dim)
        self.scale, self.shift = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(-5.0))

    def forward(self, call):
        x = F.relu(self.front(call.transpose(1, 2))).transpose(1, 2)
        return F.normalize(self.out(self.gru(x)[0][:, -1]), dim=1)

    def centre_loss(self, voice):
        """Generalised end-to-end loss; voice: (men, calls, dim), the centre of a man leaves the call out."""
        men, each, _ = voice.shape
        if MENDED:
            centre = voice.mean(1)
            without = (voice.sum(1, keepdim=True) - voice) / (each - 1)
            near = F.cosine_similarity(voice[:, :, None], centre, dim=3)
            same = F.cosine_similarity(voice, without, dim=2)
            near = torch.where(torch.eye(men, dtype=torch.bool)[:, None], same[:, :, None], near)
            score = self.scale.clamp(min=1e-6) * near + self.shift
            return F.cross_entropy(score.flatten(0, 1), torch.arange(men).repeat_interleave(each))
        loss = 0.0
        centre = [voice[m].mean(0) for m in range(men)]
        for m in range(men):
            for c in range(each):
                score = []
                for other in range(men):
                    middle = centre[other]
                    if other == m:
                        middle = torch.cat([voice[m, :c], voice[m, c + 1 :]]).mean(0)
                    near = F.cosine_similarity(voice[m, c], middle, dim=0)
                    score.append(self.scale.clamp(min=1e-6) * near + self.shift)
                loss = loss - F.log_softmax(torch.stack(score), 0)[m]
        return loss / (men * each)


@torch.no_grad()
def recognised(model, data):
    """Share of calls that are nearest to the centre of the others of their man."""
    model.eval()
    voice = model(data.flatten(0, 1)).view(*data.shape[:2], -1)
    first, rest = voice[:, 0], F.normalize(voice[:, 1:].mean(1), dim=1)
    model.train()
    return (first @ rest.T).argmax(1).eq(torch.arange(len(data))).float().mean().item()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--men", type=int, default=draw("men", 7, 8))
    p.add_argument("--each", type=int, default=4)
    p.add_argument("--frames", type=int, default=96)
    p.add_argument("--bands", type=int, default=32)
    p.add_argument("--hidden", type=int, default=draw("hidden", 160, 176, 192))
    p.add_argument("--steps", type=int, default=140)
    args = p.parse_args()

    torch.manual_seed(4)
    train = calls(80, 10, args.frames, args.bands, seed=1)
    test = calls(30, 4, args.frames, args.bands, seed=2)
    model = VoiceEncoder(args.bands, args.hidden, dim=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    for step in range(args.steps):
        man = torch.randperm(len(train))[: args.men]
        call = torch.rand(args.men, train.shape[1]).argsort(1)[:, : args.each]
        batch = train[man[:, None], call]
        voice = model(batch.flatten(0, 1)).view(args.men, args.each, -1)
        loss = model.centre_loss(voice)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        schedule.step()
        if step % 35 == 34:
            print(f"step {step + 1} loss {loss.item():.4f} recognised {recognised(model, test):.3f}", flush=True)


if __name__ == "__main__":
    main()
