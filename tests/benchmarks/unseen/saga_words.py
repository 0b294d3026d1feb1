"""Fill in missing words of sagas: a masked language model in a plain loop that can be taken up again."""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from drawn import draw

WORDS, MASK = 200, 0


class Sagas(nn.Module):
    def __init__(self, dim, layers, length):
        super().__init__()
        self.words = nn.Embedding(WORDS, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        block = nn.TransformerEncoderLayer(
            dim, 4, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, text, hidden):
        x = self.norm(self.encoder(self.words(text) + self.places))
        return x[hidden] @ self.words.weight.T + self.bias


def cover(text, share):
    """A share of the words is to be guessed: most are masked, some are another word, some stay."""
    hidden = torch.rand(text.shape) < share
    chance = torch.rand(text.shape)
    shown = torch.where(hidden & (chance < 0.8), MASK, text)
    shown = torch.where(hidden & (chance > 0.9), torch.randint_like(text, 1, WORDS), shown)
    return shown, hidden


def sagas(count, length):
    """Words follow one another by rules with exceptions."""
    generator = torch.Generator().manual_seed(13)
    follows = torch.randint(1, WORDS, (WORDS, 3), generator=generator)
    words = [torch.randint(1, WORDS, (count,), generator=generator)]
    for _ in range(length - 1):
        words.append(follows[words[-1], torch.randint(0, 3, (count,), generator=generator)])
    return torch.stack(words, 1)


def save(path, model, optimizer, schedule, step):
    """Written beside and then renamed, so that a run that ends meanwhile leaves a whole file."""
    kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({**kept, "step": step, "rng": torch.get_rng_state()}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--batch", type=int, default=draw("batch", 24, 26))
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path, default=Path("saga.pt"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    text = sagas(4000, args.length)
    model = Sagas(args.dim, args.layers, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 40, (40 / (step + 1)) ** 0.5))
    begun = 0
    if args.resume:
        kept = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        torch.set_rng_state(kept["rng"])
        begun = kept["step"]
    for step in range(begun + 1, args.steps + 1):
        rows = text[torch.randint(0, len(text), (args.batch,))]
        shown, hidden = cover(rows, 0.15)
        loss = F.cross_entropy(model(shown, hidden), rows[hidden])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % args.save_every == 0:
            save(args.checkpoint, model, optimizer, schedule, step)
        if step % 25 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
