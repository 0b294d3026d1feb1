"""A script for two ranks that accumulates gradients in many ways, and prints what each way ends with."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Wrapped

MICRO = 3
SHORT = 3  # the step of an epoch that has fewer
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()


def counting(made, bucket):
    """The collective as torch makes it, counted in a list."""
    made.append(bucket.index())
    whole = bucket.buffer() / dist.get_world_size()
    return dist.all_reduce(whole, async_op=True).get_future().then(lambda done: done.value()[0])


class Branching(torch.nn.Module):
    """Its second half takes part in the first micro-batch of a step alone, its third on rank 0 alone."""

    def __init__(self):
        super().__init__()
        self.halves = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.calls = 0

    def forward(self, batch):
        self.calls += 1
        out = self.halves[0](batch)
        if self.calls % MICRO == 1:
            out = out + self.halves[1](batch)
        if RANK == 0:
            out = out + self.halves[2](batch)
        return {"out": [out, None]}


class Trial:
    """One way to train: a fresh model that begins alike on both ranks and with the knob and without."""

    def __init__(self, inner=None, hook=True, **options):
        torch.manual_seed(7)
        parts = torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)
        self.inner = inner() if inner else torch.nn.Sequential(*parts)
        self.model = Wrapped(self.inner, **options)
        self.reductions = []
        if hook:
            self.model.register_comm_hook(self.reductions, counting)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.noise = torch.Generator().manual_seed(11 + RANK)

    def batch(self, scale=1.0):
        return scale * (1 + 4 * RANK) * torch.randn(4, 8, generator=self.noise)

    def loss(self, batch):
        out = self.model(batch)
        out = out["out"][0] if isinstance(out, dict) else out
        return out.pow(2).mean() / MICRO

    def end(self, name):
        total = sum(one.detach().double().abs().sum() for one in self.model.parameters())
        line = f"{name} rank {RANK} weights {total:.9f} reductions {len(self.reductions)}\n"
        os.write(1, line.encode())  # at once: both ranks write here


def steps(short=True):
    for step in range(6):
        yield step, 2 if short and step == SHORT else MICRO


def plain(at="end", none=True, **options):
    one = Trial(**options)
    for _, micros in steps():
        for micro in range(micros):
            if at == "top" and micro == 0:
                one.optimizer.zero_grad(set_to_none=none)
            loss = one.loss(one.batch())
            if at == "between" and micro == 0:
                one.model.zero_grad(set_to_none=none)
            loss.backward()
        one.optimizer.step()
        if at == "end":
            one.optimizer.zero_grad(set_to_none=none)
    return one


def skipping():
    """The first step overflows on both ranks, a later one on rank 1 alone."""
    one = Trial()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60, growth_interval=100)
    for step, micros in steps():
        for micro in range(micros):
            scale = float("inf") if step == 4 and micro == 1 and RANK == 1 else 100.0
            scaler.scale(one.loss(one.batch(scale))).backward()
        if step % 2:
            scaler.unscale_(one.optimizer)
            torch.nn.utils.clip_grad_norm_(one.model.parameters(), 0.02)
        scaler.step(one.optimizer)
        scaler.update()
        one.optimizer.zero_grad()
        dist.all_reduce(torch.zeros(3))  # what another late all-reduce would meet
    return one


def short_overflow():
    """A short step that overflows on one rank alone: its gradients are averaged late, and both ranks skip it."""
    one = Trial()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for step, micros in steps():
        for micro in range(micros):
            scale = float("inf") if step == SHORT and micro == 0 and RANK == 0 else 1.0
            scaler.scale(one.loss(one.batch(scale))).backward()
        scaler.step(one.optimizer)
        scaler.update()
        one.model.zero_grad()
        dist.all_reduce(torch.zeros(3))
    return one


def clipping(clip):
    one = Trial()
    for _, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
        clip(one.model)
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def skipped_by_the_script():
    """A step without the optimizer, as a script takes one whose loss is not finite."""
    one = Trial()
    for step, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
        if step not in (0, 2):
            one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def no_backward():
    """Forward passes without a backward pass, in training mode."""
    one = Trial()
    for _, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
        one.loss(one.batch())
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def twice_forward():
    """Two forward passes in one backward pass, as of a Siamese network."""
    one = Trial()
    for _, micros in steps():
        for _ in range(micros):
            (one.loss(one.batch()) + one.loss(one.batch())).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def two_optimizers():
    one = Trial()
    first, second = (torch.optim.SGD(half.parameters(), lr=0.05) for half in (one.inner[0], one.inner[2]))
    for _, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    return one


def own_no_sync():
    one = Trial()
    for _, micros in steps():
        for micro in range(micros):
            with one.model.no_sync() if micro < micros - 1 else contextlib.nullcontext():
                one.loss(one.batch()).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def own_switch():
    one = Trial()
    for _, micros in steps():
        for micro in range(micros):
            one.model.require_backward_grad_sync = micro == micros - 1
            one.loss(one.batch()).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def clipped_each_time():
    one = Trial()
    for _, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
            torch.nn.utils.clip_grad_norm_(one.model.parameters(), 0.02)
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def read_on_one_rank():
    """One rank alone looks at the norm between micro-batches."""
    one = Trial()
    for _, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
            if RANK == 0:
                torch.nn.utils.get_total_norm([each.grad for each in one.model.parameters()])
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def twice_backward():
    """A part of the loss is taken apart from the rest of the same forward pass."""
    one = Trial()
    for _, micros in steps():
        for _ in range(micros):
            loss = one.loss(one.batch())
            loss.backward(retain_graph=True)
            with torch.no_grad():
                kept = [each.grad.clone() for each in one.model.parameters()]
            loss.backward()
            for each, grad in zip(one.model.parameters(), kept, strict=True):
                each.grad.copy_(grad)
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


class Hiding(torch.nn.Module):
    """From the third step on its output is of a kind in which no tensor is found."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.calls = 0

    def forward(self, batch):
        self.calls += 1
        out = self.layer(batch)
        return Hidden(out) if self.calls > 2 * MICRO else out


class Hidden:
    def __init__(self, out):
        self.out = out

    def pow(self, exponent):
        return self.out.pow(exponent)


class Looking(torch.nn.Module):
    """A table of which a batch touches a few rows."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 8, sparse=True)

    def forward(self, batch):
        return self.table(batch.abs().long().clamp(max=31))


def closure():
    one = Trial()
    for _, micros in steps():

        def whole(micros=micros):
            one.optimizer.zero_grad()
            return sum(one.loss(one.batch()).backward() or 0 for _ in range(micros))

        one.optimizer.step(whole)
    return one


def joined():
    one = Trial()
    one.loss(one.batch()).backward()
    one.optimizer.step()
    one.optimizer.zero_grad()
    with one.model.join():
        for _, micros in steps():
            for _ in range(micros):
                one.loss(one.batch()).backward()
            one.optimizer.step()
            one.optimizer.zero_grad()
    return one


def compiled():
    one = Trial()
    one.model.forward(one.batch())
    run = torch.compile(one.model, backend="eager")
    for _, micros in steps():
        for _ in range(micros):
            (run(one.batch()).pow(2).mean() / MICRO).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def sparse():
    one = Trial(inner=Looking, hook=False)
    one.optimizer = torch.optim.SGD(one.model.parameters(), lr=0.05)
    for _, micros in steps():
        for _ in range(micros):
            one.loss(one.batch()).backward()
            one.reductions += [0] * one.model.require_backward_grad_sync
        one.optimizer.step()
        one.optimizer.zero_grad()
    return one


def by_norm(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.02)


def by_keyword(model):
    torch.nn.utils.clip_grad_norm_(max_norm=0.02, parameters=iter(list(model.parameters())))


def by_value(model):
    torch.nn.utils.clip_grad_value_(list(model.parameters()), 0.001)


def by_total(model):
    norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.02, norm)


WAYS = {
    "plain": plain,
    "zero-at-the-top": lambda: plain("top"),
    "zero-between": lambda: plain("between"),
    "zero-kept": lambda: plain("end", none=False),
    "bucket-views": lambda: plain(gradient_as_bucket_view=True),
    "static-graph": lambda: plain(static_graph=True),
    "unused": lambda: plain(inner=Branching, find_unused_parameters=True),
    "skipping": skipping,
    "short-overflow": short_overflow,
    "clip-norm": lambda: clipping(by_norm),
    "clip-keyword": lambda: clipping(by_keyword),
    "clip-value": lambda: clipping(by_value),
    "clip-total": lambda: clipping(by_total),
    "skipped-by-the-script": skipped_by_the_script,
    "no-backward": no_backward,
    "twice-forward": twice_forward,
    "two-optimizers": two_optimizers,
    "own-no-sync": own_no_sync,
    "own-switch": own_switch,
    "clipped-each-time": clipped_each_time,
    "read-on-one-rank": read_on_one_rank,
    "twice-backward": twice_backward,
    "hiding": lambda: plain(inner=Hiding),
    "sparse": sparse,
    "closure": closure,
    "joined": joined,
    "compiled": compiled,
}
for name in sys.argv[1:] or WAYS:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WAYS[name]().end(name)
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # with static_graph=True, torch aborts in some exits of the interpreter
