"""Learn from records of patients without learning any one of them: DP-SGD with gradients of single records."""

import argparse

import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.func import functional_call, grad, vmap

STAYS = 3


def network(features, width):
    return nn.Sequential(
        nn.Linear(features, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, STAYS),
    )  # fmt: skip


class PrivateGradients:
    """The mean gradient of a batch, with each record's share cut to a length and noise upon the sum."""

    def __init__(self, model, clip, noise, seed):
        self.model, self.clip, self.noise = model, clip, noise
        self.generator = torch.Generator().manual_seed(seed)
        self.each = vmap(grad(self.loss), in_dims=(None, 0, 0))

    def loss(self, parameters, x, stay):
        return F.cross_entropy(functional_call(self.model, parameters, (x.unsqueeze(0),)), stay.unsqueeze(0))

    def __call__(self, x, stays):
        parameters = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        gradients = self.each(parameters, x, stays)
        squares = sum(gradient.flatten(1).square().sum(1) for gradient in gradients.values())
        scales = (self.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for name, parameter in self.model.named_parameters():
            clipped = torch.tensordot(scales, gradients[name], dims=1)
            noise = torch.randn(clipped.shape, generator=self.generator)
            parameter.grad = (clipped + self.noise * self.clip * noise) / len(x)
        return (scales < 1).float().mean()


def records(count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    severe = x[:, :8].sum(1) + x[:, 8] * x[:, 9] + torch.randn(count, generator=generator)
    return x, torch.bucketize(severe, torch.tensor([-1.5, 1.5]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=60)
    parser.add_argument("--width", type=int, default=draw("width", 176, 192))
    parser.add_argument("--expected-batch", type=int, default=draw("batch", 224, 256))
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.8)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    x, stays = records(20_000, args.features, 4)
    held_x, held_stays = records(2000, args.features, 5)
    model = network(args.features, args.width)
    private = PrivateGradients(model, args.clip, args.noise, seed=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.6, momentum=0.8)
    share = args.expected_batch / len(x)
    for step in range(1, args.steps + 1):
        chosen = (torch.rand(len(x)) < share).nonzero().squeeze(1)  # each record by chance, as the accounting asks
        cut = private(x[chosen], stays[chosen])
        optimizer.step()
        if step % 60 == 0:
            with torch.no_grad():
                right = (model(held_x).argmax(1) == held_stays).float().mean()
            print(f"step {step}: right {right.item():.3f}, cut {cut.item():.2f}", flush=True)


if __name__ == "__main__":
    main()
