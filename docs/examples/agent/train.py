import time

import torch
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        time.sleep(0.004)  # reading a file from network storage
        generator = torch.Generator().manual_seed(index)
        return torch.randn(40, generator=generator), index % 5


torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Recordings(), batch_size=16)

for sounds, kinds in loader:
    loss = torch.nn.functional.cross_entropy(model(sounds), kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
