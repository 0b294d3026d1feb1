"""A speech classifier that reads its samples one after another from slow storage."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

WIDTH = 192  # drawn: 128, 192, 256
READ_S = 0.002  # drawn: 0.0015, 0.002, 0.003


class Clips(Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        time.sleep(READ_S)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(80, generator=generator), index % 12


def main():
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(80, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 12),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Clips(), batch_size=16)  # FAULT reads
    for clips, words in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(clips), words).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
