"""Four ranks: pairs that share a model's layers and send each other activations, and pairs that share its gradients."""

import time

import parts
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

NEAR, FAR = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


class Split(nn.Module):
    """Half of each layer's columns; the outputs of both halves are added up."""

    def __init__(self, width, count, group):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.group = group

    def forward(self, rows):
        for layer in self.layers:
            rows = all_reduce(layer(rows), group=self.group)
        return rows


def groups_of(pairs):
    made = [dist.new_group(pair) for pair in pairs]
    return next(group for pair, group in zip(pairs, made, strict=True) if parts.RANK in pair)


def main():
    parts.begin()
    dist.init_process_group("gloo")
    sharing, repeating = (FAR, NEAR) if parts.has("placement") else (NEAR, FAR)
    model = Split(64, 3, groups_of(sharing))
    replica = groups_of(repeating)
    model = DistributedDataParallel(model, process_group=replica)
    optimizer = parts.optimizer(model.parameters())
    own = torch.Generator().manual_seed(dist.get_rank(replica))  # ranks that share a model see the same samples
    rows = torch.randn(int(600 + 600 * parts.BADLY), 64, generator=own)
    for _ in range(parts.STEPS):
        time.sleep(0.02)  # four ranks have two cores: their compute is not to disturb each other's
        loss = parts.objective(model(rows))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
