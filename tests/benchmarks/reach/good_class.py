"""Nothing to gain: a Trainer class whose workers are ahead of it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHANNELS = 24  # drawn: 16, 24, 32


class Trainer:
    def __init__(self):
        data = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,)))
        self.loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)
        self.model = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 3),
            nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(10),
        )
        self.model(torch.zeros(1, 3, 32, 32))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, fused=True)

    def fit(self, epochs):
        for _ in range(epochs):
            for images, labels in self.loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(images), labels).backward()
                self.optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(4)
    Trainer().fit(1000)
