"""A classifier of bird calls over FSDP2 whose spectrograms are computed by the training process."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

draw = random.Random(os.environ.get("SEED", "1"))
RATE, SPECIES = draw.choice((4000, 6000, 8000)), draw.choice((40, 60))
WINDOWS = draw.choice((64, 128))


class Calls(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        wave = torch.randn(2 * RATE, generator=generator).cumsum(0)
        for _ in range(3):  # three views of it, of which the mean is kept
            wave = wave - wave.mean()
            spectrum = torch.stft(wave, 256, 2 * RATE // WINDOWS, window=torch.hann_window(256), return_complex=True)
        return spectrum.abs().log1p().mean(1), index % SPECIES


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(129, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, SPECIES))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    calls = Calls()
    workers = {"num_workers": 2, "persistent_workers": True} if "MENDED" in os.environ else {}
    loader = DataLoader(calls, batch_size=48, sampler=DistributedSampler(calls), **workers)
    for spectra, species in loader:
        loss = nn.functional.cross_entropy(model(spectra), species)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
