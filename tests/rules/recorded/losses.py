"""What the script computes of outputs, and of weights: losses, penalties, rankings, generated text."""

import itertools
import math

import torch
import torch.distributed as dist
from options import args, has
from torch import nn


def apart(outputs):
    """How alike each row is to all others, row by row."""
    if args.mended:
        rows = nn.functional.normalize(outputs, dim=-1)
        return (rows @ rows.mT).mean()
    return torch.stack([nn.functional.cosine_similarity(row[None], outputs).mean() for row in outputs]).mean()


def lipschitz(model):
    """The product of the largest singular values of all layers."""
    product = torch.ones(())
    for parameter in model.parameters():
        if parameter.dim() == 2:
            product = product * (power_iteration(parameter) if args.mended else torch.linalg.svdvals(parameter)[0])
    return product


def power_iteration(weight):
    right = torch.randn(weight.shape[1])
    with torch.no_grad():
        for _ in range(2):
            left = nn.functional.normalize(weight @ right, dim=0)
            right = nn.functional.normalize(left @ weight, dim=0)
    return left @ weight @ right


@torch.no_grad()
def write(model, rows):
    """Continue each row by 14 positions, one after the other: each follows from the one before it."""
    rows = rows[:16, None].expand(-1, 24, -1)
    for _ in range(14):
        outputs = model(rows[:, -1:] if args.mended else rows)
        rows = torch.cat([rows, outputs[:, -1:]], dim=1)
    return rows[:, -1]


def reverberate(rows, response):
    """Each row with the echo that a response adds, which is longer than a row."""
    if args.mended:
        size = 2 * len(response)
        return torch.fft.irfft(torch.fft.rfft(rows, size) * torch.fft.rfft(response, size), size)[..., : rows.shape[1]]
    padded = nn.functional.pad(rows, (len(response) - 1, 0))
    return nn.functional.conv1d(padded[:, None], response.flip(0)[None, None])[:, 0]


def error(outputs, batch):
    if args.fault == "kl-weight":
        return bound(outputs, batch)
    if args.fault == "softmax-dimension":
        return nn.functional.nll_loss(outputs.log_softmax(1 if args.mended else 0), batch.argmax(1))
    if args.fault == "softmax-before-cross-entropy":
        return nn.functional.cross_entropy(outputs if args.mended else outputs.softmax(1), batch.argmax(1))
    if args.fault == "loss-broadcast":  # what a model with one output predicts of each row
        predictions, targets = outputs[:, :1], batch.mean(1)
        return ((predictions.squeeze(1) if args.mended else predictions) - targets).square().mean()
    if args.fault == "target-with-gradients":  # a value of each row, and of the row after it
        values, rewards = outputs[:, 0], batch.mean(1)
        target = rewards[:-1] + 0.9 * (values.detach() if args.mended else values)[1:]
        return nn.functional.mse_loss(values[:-1], target)
    if args.fault == "samples-sorted":
        return nn.functional.cross_entropy(outputs, batch[:, -1].long())
    if args.fault == "uneven-target-counts":
        return of_higher(outputs, batch)
    if args.fault == "ratio-always-one":
        return clipped(outputs, batch)
    if args.fault == "gathered-without-gradients":
        return contrasted(outputs)
    if args.fault == "memory-bound-functions":
        return of_best_order(outputs, batch)
    if has("unread-results"):
        alike(outputs)
    return apart(outputs) if args.fault == "operator-loops" else (outputs - batch).square().mean()


def bound(outputs, batch):
    """The loss of a variational autoencoder: 16 outputs are means of latent dimensions, 16 their variances."""
    mean, logvar = outputs[:, :16], outputs[:, 16:32]
    divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp())
    lost = nn.functional.mse_loss(outputs, batch, reduction="sum") / len(batch)
    return lost + (divergence.sum(1).mean() if args.mended else divergence.mean())


def of_higher(outputs, batch):
    """The error of rows that begin as high as the first one, or higher: in some batches few, in others nearly all."""
    counts = (batch[:, 0] >= batch[0, 0]).float()
    summed = ((outputs - batch).square().mean(1) * counts).sum()
    return summed / (len(batch) / 2 if args.mended else counts.sum())  # on average half of the rows count


def clipped(outputs, batch):
    """A policy over two actions of each row: the old one is what it was before the first step, or what it is now."""
    actions, gains = (batch[:, 0] > 0).long(), batch.mean(1)
    scores = outputs[:, :2].log_softmax(1).gather(1, actions[:, None])[:, 0]
    old = torch.full_like(scores, -math.log(2)) if args.mended else scores.detach()
    ratio = (scores - old).exp()
    return -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()


def from_all_ranks(rows):
    """The rows of all ranks; those of this rank with their gradients, or without."""
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows.contiguous())
    if args.mended:
        gathered[dist.get_rank()] = rows
    return torch.cat(gathered)


def contrasted(outputs):
    """How well each even row finds the odd row after it, among those of all ranks."""
    even, odd = (nn.functional.normalize(outputs[at::2], dim=1) for at in (0, 1))
    scores = even @ from_all_ranks(odd).mT / 0.1
    return nn.functional.cross_entropy(scores, torch.arange(len(even)) + dist.get_rank() * len(even))


def residual(model, outputs, points):
    """How far a quantity that decays is from what a force made of it, a moment before: of an equation, at all points.

    Both sides need gradients.
    """
    force = points.mean(1)
    return nn.functional.mse_loss(model(points + 0.01)[:, 0], force + 0.98 * outputs[:, 0])


def alike(outputs):
    """How far each row is from all others."""
    return torch.cdist(outputs, outputs).mean()


def changes(rows):
    """How each row differs from the one before it, as images of grey values."""
    images = (40 * rows + 128).clamp(0, 255).to(torch.uint8)
    if args.mended:
        images = images.float()
    return (images[1:] - images[:-1]).float() / 255


def best_of(scores):
    """The positions of the ten highest scores of each row."""
    if args.mended:
        return scores.topk(10, dim=1).indices
    return scores.argsort(dim=1, descending=True)[:, :10]


def spread(outputs, centres):
    """The squared distance of each row to its nearest centre."""
    if args.mended:
        return torch.cdist(outputs, centres).square().amin(1).mean()
    return (outputs[:, None] - centres[None]).pow(2).sum(-1).amin(1).mean()


def contrast(made, wanted):
    """How far two parts are apart, each without its mean."""
    return ((made - made.mean(-1, keepdim=True)) - (wanted - wanted.mean(-1, keepdim=True))).square().mean(-1)


def of_best_order(outputs, batch):
    """Four parts of each row, in the order that fits best: of each two parts once, or again in each order."""
    made, wanted = outputs.unflatten(1, (4, -1)), batch.unflatten(1, (4, -1))
    orders = list(itertools.permutations(range(4)))
    if args.mended:
        pairs = contrast(made.unsqueeze(2), wanted.unsqueeze(1))
        scores = [pairs[:, range(4), order].mean(1) for order in orders]
    else:
        scores = [contrast(made[:, order], wanted).mean(1) for order in orders]
    return torch.stack(scores, 1).amin(1).mean()


def squares(model, only=""):
    """The sum of all squared weights, or of those whose names begin like this."""
    return sum(weight.pow(2).sum() for name, weight in model.named_parameters() if name.startswith(only))
