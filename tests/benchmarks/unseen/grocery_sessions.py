"""Say what is put into a basket next, from a table of all that was put into baskets: a transformer on two ranks."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD = 0


@dataclass
class Config:
    items: int = 900
    sessions: int = 36_000
    dim: int = draw("dim", 64, 72)
    layers: int = 2
    batch: int = draw("batch", 24, 28)
    longest: int = 30
    lr: float = 1e-3
    epochs: int = 1


def purchases(config):
    """One row for each thing that was put into a basket, in order of time."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, config.longest + 2, config.sessions)
    session = np.repeat(np.arange(config.sessions), lengths)
    shelf = np.repeat(rng.integers(0, 30, config.sessions), lengths)
    item = 1 + (shelf * 30 + rng.integers(0, 40, len(session))) % (config.items - 1)
    frame = pd.DataFrame({"session": session, "item": item, "time": rng.uniform(0, 1e6, len(session))})
    return frame.sort_values("time", ignore_index=True)


class Baskets(Dataset):
    def __init__(self, frame, longest):
        self.frame, self.longest = frame, longest
        self.sessions = frame["session"].unique()
        if MENDED:
            self.items = {session: rows.to_numpy() for session, rows in frame.groupby("session")["item"]}

    def __len__(self):
        return len(self.sessions)

    def basket(self, session):
        if MENDED:
            return self.items[session]
        return self.frame[self.frame["session"] == session]["item"].to_numpy()

    def __getitem__(self, index):
        items = self.basket(self.sessions[index])[: self.longest + 1]
        return torch.from_numpy(items)


def collate(baskets):
    ids = nn.utils.rnn.pad_sequence(baskets, batch_first=True, padding_value=PAD)
    return ids[:, :-1], ids[:, 1:]


class NextItem(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.items = nn.Embedding(config.items, config.dim, padding_idx=PAD)
        nn.init.normal_(self.items.weight, std=0.05)
        self.places = nn.Parameter(0.02 * torch.randn(config.longest, config.dim))
        layer = nn.TransformerEncoderLayer(
            config.dim, 4, 4 * config.dim, 0.1, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, ids):
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.layers(self.items(ids) + self.places[:length], mask=mask, is_causal=True)
        return self.norm(x) @ self.items.weight.T


class Trainer:
    def __init__(self, config):
        self.config = config
        data = Baskets(purchases(config), config.longest)
        self.sampler = DistributedSampler(data, drop_last=True)
        self.loader = DataLoader(data, config.batch, sampler=self.sampler, collate_fn=collate, drop_last=True)
        torch.manual_seed(0)
        self.model = DDP(NextItem(config))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, fused=True)

    def step(self, ids, following):
        logits = self.model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=PAD)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self):
        for epoch in range(self.config.epochs):
            self.sampler.set_epoch(epoch)
            total = sum(self.step(ids, following) for ids, following in self.loader)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {total.item() / len(self.loader):.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(Config()).fit()
    dist.destroy_process_group()
