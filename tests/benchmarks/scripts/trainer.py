"""A training loop in a class, with methods to overload and metrics to log."""

import time

import parts
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.history = []

    def fit(self, epochs):
        for epoch in range(epochs):
            if hasattr(self.loader.sampler, "set_epoch"):
                self.loader.sampler.set_epoch(epoch)
            for number, batch in enumerate(self.loader):
                self.train_step(number, batch)

    def train_step(self, number, batch):
        loss = self.compute_loss(parts.before_forward(batch))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        parts.after_step()
        self.log(number, loss)

    def compute_loss(self, batch):
        return parts.objective(self.model(batch))

    def log(self, number, loss):
        if parts.has("gathers"):
            parts.gather({"loss": float(loss.detach()), "at": time.time(), "step": number})
        elif number % 50 == 0:
            self.history.append({"step": number, "loss": float(loss.detach())})


def main():
    parts.begin()
    model = parts.model()
    if parts.WORLD > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, **parts.ddp_options())
    Trainer(model, parts.optimizer(model.parameters()), parts.loader()).fit(epochs=3)
    if parts.WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
