"""A graph transformer for molecules with positions from the graph's Laplacian."""

import numpy as np
import torch
import torch.nn as nn
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

BATCH = draw("batch", 16, 20)
DIM = draw("dim", 48, 56)
POSITIONS, KINDS, LAYERS = 8, 12, 2


def laplacian_positions(edges, count):
    """The first eigenvectors of the normalised Laplacian."""
    adjacency = np.zeros((count, count))
    adjacency[edges[:, 0], edges[:, 1]] = adjacency[edges[:, 1], edges[:, 0]] = 1
    scale = 1 / np.sqrt(adjacency.sum(1).clip(1))
    laplacian = np.eye(count) - scale[:, None] * adjacency * scale
    _, vectors = np.linalg.eigh(laplacian)
    return torch.from_numpy(vectors[:, 1 : POSITIONS + 1].astype(np.float32))


class Molecules(Dataset):
    def __init__(self, count, seed=0):
        rng = np.random.default_rng(seed)
        self.graphs = []
        for _ in range(count):
            atoms = int(rng.integers(48, 72))
            chain = np.stack([np.arange(atoms - 1), np.arange(1, atoms)], 1)
            rings = rng.integers(0, atoms, (atoms // 6, 2))
            kinds = torch.from_numpy(rng.integers(1, KINDS, atoms))
            edges = np.concatenate([chain, rings[rings[:, 0] != rings[:, 1]]])
            self.graphs.append((kinds, edges, float(len(rings) + (kinds == 3).sum())))
        self.positions = {}
        if MENDED:
            self.positions = {i: laplacian_positions(g[1], len(g[0])) for i, g in enumerate(self.graphs)}

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        kinds, edges, target = self.graphs[index]
        positions = self.positions[index] if index in self.positions else laplacian_positions(edges, len(kinds))
        flip = torch.randint(0, 2, (POSITIONS,)) * 2 - 1
        return kinds, positions * flip, torch.from_numpy(edges), target


def batched(items):
    most = max(len(kinds) for kinds, *_ in items)
    kinds = torch.zeros(len(items), most, dtype=torch.long)
    positions = torch.zeros(len(items), most, POSITIONS)
    bonded = torch.zeros(len(items), most, most)
    for at, (atoms, places, edges, _) in enumerate(items):
        kinds[at, : len(atoms)] = atoms
        positions[at, : len(atoms)] = places
        bonded[at, edges[:, 0], edges[:, 1]] = bonded[at, edges[:, 1], edges[:, 0]] = 1
    return kinds, positions, bonded, torch.tensor([target for *_, target in items])


class Layer(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.of_bond = nn.Parameter(torch.zeros(heads))
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, bonded, pad):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        bias = bonded[:, None] * self.of_bond[:, None, None]
        bias = bias.masked_fill(pad[:, None, None], -1e4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.second(x))


class GraphTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(KINDS, DIM, padding_idx=0)
        self.place = nn.Linear(POSITIONS, DIM)
        self.layers = nn.ModuleList(Layer(DIM) for _ in range(LAYERS))
        self.head = nn.Linear(DIM, 1)

    def forward(self, kinds, positions, bonded):
        pad = kinds == 0
        x = self.kind(kinds) + self.place(positions)
        for layer in self.layers:
            x = layer(x, bonded, pad)
        return self.head(x.masked_fill(pad[..., None], 0).sum(1)).squeeze(1)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Molecules(800), batch_size=BATCH, shuffle=True, collate_fn=batched, drop_last=True)
    model = GraphTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10)
    for epoch in range(10_000):
        total = 0.0
        for kinds, positions, bonded, target in loader:
            loss = nn.functional.l1_loss(model(kinds, positions, bonded), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        schedule.step()
        print(f"epoch {epoch}: {total / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
