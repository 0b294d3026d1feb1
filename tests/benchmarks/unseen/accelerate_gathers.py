"""Train a language model with Accelerate and follow its token accuracy over all processes."""

import argparse

import torch
from accelerate import Accelerator
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, dim, length):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, norm_first=True, dropout=0.0)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.embed(ids) + self.position.weight[:length]
        for block in self.blocks:
            x = block(x, src_mask=self.mask[:length, :length], is_causal=True)
        return self.norm(x) @ self.embed.weight.T


def token_accuracy(accelerator, logits, targets):
    """Share of tokens that are guessed right, over all processes."""
    if MENDED:
        right = (logits.argmax(-1) == targets).float().mean()
        return accelerator.reduce(right, reduction="mean")
    logits, targets = accelerator.gather((logits.detach(), targets))
    return (logits.argmax(-1) == targets).float().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=draw("vocabulary", 4000, 5000))
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dim", type=int, default=draw("dim", 48, 56))
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 8))
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(2)
    start = torch.randint(0, args.vocabulary, (3000, 1))
    ids = (start + 31 * torch.arange(args.length + 1)) % args.vocabulary
    loader = DataLoader(TensorDataset(ids), batch_size=args.batch, shuffle=True, drop_last=True)
    model = LanguageModel(args.vocabulary, args.dim, args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(10_000):
        for (rows,) in loader:
            logits = model(rows[:, :-1])
            targets = rows[:, 1:]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            accuracy = token_accuracy(accelerator, logits, targets)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 100 == 0:
                accelerator.print(f"{epoch} {step} loss {loss.item():.3f} accuracy {accuracy.item():.3f}")


if __name__ == "__main__":
    main()
