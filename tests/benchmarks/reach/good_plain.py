"""Nothing to gain: one process that computes with the cores it has, on data in memory."""

import torch

WIDTH = 1024  # drawn: 768, 1024, 1280

torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Linear(256, WIDTH),
    torch.nn.ReLU(),
    torch.nn.Linear(WIDTH, WIDTH),
    torch.nn.ReLU(),
    torch.nn.Linear(WIDTH, 4),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
data, labels = torch.randn(4096, 256), torch.randint(0, 4, (4096,))
for epoch in range(100_000):
    for batch, target in zip(data.split(256), labels.split(256), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()
