"""Continue folk tunes note by note with Lightning, on two ranks."""

import argparse
import os

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import MENDED, draw
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset

NOTES = 128


class Tunes(Dataset):
    """Walks over a scale."""

    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(6)
        moves = torch.randint(-3, 4, (count, length + 1), generator=generator)
        self.notes = (60 + moves.cumsum(1)) % NOTES

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, index):
        return self.notes[index]


class RelativeAttention(nn.Module):
    """Attention that prefers notes nearby, by a table of how far two places are apart."""

    def __init__(self, dim, heads, longest, slope):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        places = torch.arange(longest)
        away = places.view(-1, 1) - places
        bias = -slope * away.float()
        self.register_buffer("bias", bias.masked_fill(away < 0, float("-inf")))

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:t, :t])
        return self.out(y.transpose(1, 2).reshape(n, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, longest, slope):
        super().__init__()
        self.attention = RelativeAttention(dim, heads, longest, slope)
        self.inner = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.inner(self.norms[1](x))


class Fiddler(L.LightningModule):
    def __init__(self, dim, layers, longest, rate):
        super().__init__()
        self.save_hyperparameters()
        self.notes = nn.Embedding(NOTES, dim)
        self.blocks = nn.ModuleList(Block(dim, 4, longest, 2.0**-at) for at in range(1, layers + 1))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, NOTES))

    def forward(self, notes):
        x = self.notes(notes)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def training_step(self, notes, index):
        logits = self(notes[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), notes[:, 1:].flatten())
        self.log("loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.rate, fused=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunes", type=int, default=4000)
    parser.add_argument("--length", type=int, default=draw("length", 64, 72))
    parser.add_argument("--longest", type=int, default=1280)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    L.seed_everything(1, verbose=False)
    loader = DataLoader(Tunes(args.tunes, args.length), args.batch, shuffle=True, drop_last=True)
    strategy = DDPStrategy(process_group_backend="gloo", broadcast_buffers=not MENDED)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy=strategy,
        max_steps=args.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Fiddler(args.dim, args.layers, args.longest, 5e-4), loader)


if __name__ == "__main__":
    main()
