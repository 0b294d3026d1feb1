"""A generator and a discriminator: two optimizers step once each in every training step."""

import argparse

import ending
import torch
import weights
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
real_label, fake_label = torch.ones(32, 1), torch.zeros(32, 1)

for step in range(1, args.steps + 1):
    ending.at(step)
    real, fake = torch.randn(32, 16), generator(torch.randn(32, 8))

    optimizer_d.zero_grad()
    criterion(discriminator(real), real_label).backward()
    criterion(discriminator(fake.detach()), fake_label).backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    criterion(discriminator(fake), real_label).backward()
    optimizer_g.step()

weights.show([*generator.parameters(), *discriminator.parameters()])
