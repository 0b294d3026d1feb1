"""A recurrent model on one core, as somebody needed it on a shared login node once."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # FAULT threads

import torch

HIDDEN = 320  # drawn: 256, 320, 384
BATCH = 32  # drawn: 24, 32, 48


def main():
    torch.manual_seed(9)
    model = torch.nn.LSTM(64, HIDDEN, batch_first=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        optimizer.zero_grad()
        model(torch.randn(BATCH, 10, 64))[0].square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
