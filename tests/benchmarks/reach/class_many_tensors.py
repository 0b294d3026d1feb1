"""A Trainer class with a model of many small tensors, and samples that are decoded in the training process."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BLOCKS = 120  # drawn: 100, 120, 160
DECODE_S = 0.001  # drawn: 0.001, 0.0015


class Scans(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(DECODE_S)
        return torch.full((32,), (index % 97) / 97), torch.tensor(float(index % 2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Trainer:
    def __init__(self, model, data, batch_size=16):
        self.model = model
        self.loader = DataLoader(data, batch_size=batch_size)  # FAULT decodes
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # FAULT updates

    def step(self, scans, labels):
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(scans).mean(1), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self):
        for scans, labels in self.loader:
            self.step(scans, labels)


if __name__ == "__main__":
    torch.manual_seed(11)
    torch.set_num_threads(1)
    Trainer(nn.Sequential(*[Block(32) for _ in range(BLOCKS)]), Scans(500_000)).fit()
