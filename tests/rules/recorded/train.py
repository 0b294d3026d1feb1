"""An ordinary training script of two ranks on a CPU, with one of several faults in it, or with that fault mended.

    torchrun --nproc-per-node 2 train.py FAULT [--mended]

What is recorded of it is beside it in runs/: see record.py.
"""

import contextlib
import copy
import gc
import json
import os
import sys
import tempfile
import time

if "unsupported-dtype" in sys.argv:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # as on a CPU that does not compute in fp16

import torch
import torch.distributed as dist
from batches import Rows, accelerator, as_it_is, build_loader, endless
from epochs import Stopper, resume, train_epochs
from epochs import evaluate as evaluate_rows
from losses import best_of, changes, error, lipschitz, residual, reverberate, spread, squares, write
from models import average_gradients, build_model, pair, record_correlations, seed_by_rank
from options import IDS, args, has
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Epoch:
    """What each step of an epoch has computed."""

    def __init__(self):
        self.outputs = []

    def add(self, *tensors):
        self.outputs.append(tensors)


def average(averages, model):
    """An exponential moving average of the weights."""
    for held, parameter in zip(averages, model.parameters(), strict=True):
        held.mul_(0.999).add_(parameter.detach(), alpha=0.001)


def log_outputs(outputs):
    """A line of JSON."""
    with open(os.devnull, "w") as sink:
        sink.write(json.dumps(outputs[:128].tolist()))


class WrittenAdam(torch.optim.Optimizer):
    """Adam, operator by operator."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                state["mean"].mul_(first).add_(parameter.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                root = (state["square"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
                parameter.addcdiv_(state["mean"], root, value=-group["lr"] / (1 - first ** state["step"]))


@torch.no_grad()
def evaluate(model, rows):
    return sum(((model(rows) - rows).square().mean() for _ in range(20)), torch.zeros(()))


@torch.no_grad()
def validate(model, rows):
    model.eval()
    found = (model(rows) - rows).square().mean()
    if args.mended:
        model.train()
    return found


def save_checkpoint(model):
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"model": model.state_dict(), "history": torch.zeros(20_000_000)}, file.name)


@torch.no_grad()
def log_statistics(outputs):
    return [outputs[:, at].histc(20).tolist() for at in range(outputs.shape[1])]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2 if has("oversubscribed-cores") else 1)
    torch.autograd.set_detect_anomaly(has("debug-switches"))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = build_model()
    if has("forward-hooks"):
        record_correlations(model)
    if args.fault == "different-weights":
        seed_by_rank(model)
    wide = args.fault in ("rank-placement", "eager-attention", "slice-gradients", "upsampled-convolutions")
    width = model.in_features if wide else next(model.parameters()).shape[-1]
    if has("double-precision"):
        model = model.double()
    if args.fault == "unused-gradients" and args.mended:  # only the last layer is trained
        model[:-2].requires_grad_(False)
    if args.fault in ("parameters-without-optimizer", "optimizer-without-gradients"):
        early = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if args.fault == "parameters-without-optimizer":
        model[-2] = nn.Linear(model[-2].in_features, model[-2].out_features)
    if has("updates-lost"):
        model = model.bfloat16()
    loader, sampler = build_loader(width)
    keeps = {"broadcast_buffers": False} if args.fault == "broadcast-buffers" and args.mended else {}
    if args.fault == "few-samples-normalized":
        keeps = {"broadcast_buffers": False}
    if args.fault == "frozen-batch-norm":
        keeps = {"broadcast_buffers": False}
        model.train()
        if args.mended:
            model.backbone.eval()
    if args.fault == "unfrozen-after-wrapping":
        model[:2].requires_grad_(False)
    if args.fault == "tiny-gradients":
        keeps = {"bucket_cap_mb": 0.01}
    if has("unused-parameters-searched") or has("unreached-parameters"):
        keeps = {"find_unused_parameters": True}
    if args.fault == "rank-placement":
        keeps = {"process_group": pair((0, 1), (2, 3)) if has("rank-placement") else pair((0, 2), (1, 3))}
    if has("sharded-parameters"):
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif has("flat-parameters"):
        for at, part in enumerate(model):
            model[at] = FullyShardedDataParallel(part, device_id=torch.device("cpu"))
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif args.fault in ("small-shard-units", "flat-parameters"):
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for part in model if args.mended else [one for one in model.modules() if isinstance(one, nn.Linear)]:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif args.fault == "sharded-micro-batches":
        for part in model:
            fully_shard(part, reshard_after_forward=False)
        fully_shard(model)
    elif args.fault in ("gathered-for-logging", "optimizer-without-gradients"):
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    elif args.fault != "different-weights" and not has("unsynchronized-ranks") and not has("averaged-one-by-one"):
        model = DistributedDataParallel(model, **keeps)
    if args.fault == "recompiles":
        torch._dynamo.config.recompile_limit = 1000
        model = torch.compile(model, dynamic=args.mended, backend="eager")
    weights = [parameter.detach() for parameter in model.parameters()]
    averages = [weight.clone() for weight in weights]
    if args.fault == "wide-gradients" and args.mended:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    of_table = None
    fused = not has("unfused-optimizer") and not has("sharded-parameters")
    if has("sharded-optimizer"):
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
    else:
        trained = model.module[-2] if args.fault == "unused-gradients" else model
        if args.fault == "dense-tables" and args.mended:
            of_table = torch.optim.SparseAdam([*model.module[0].parameters()])
            trained = model.module[1:]
        if has("parameters-without-optimizer") or has("optimizer-without-gradients"):
            optimizer = early
        else:
            rate = 1e-5 if args.fault == "updates-lost" else 1e-3
            optimizer = torch.optim.AdamW(trained.parameters(), lr=rate, fused=fused)
        if args.fault == "loss-not-divided":
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
        if args.fault == "weight-penalty":
            decay = 2e-4 if args.mended else 0.0
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=decay, fused=True)
        if has("written-optimizer"):
            optimizer = WrittenAdam(model.parameters(), lr=1e-3)
    schedule = None
    if args.fault == "schedule-out-of-step":  # three epochs of this rank's batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader))
        schedule = accelerator().prepare(schedule)
    if args.fault == "zero-learning-rate":
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda made: min(1.0, made / 100))
    if args.fault == "uneven-epochs":
        train_epochs(model, optimizer, loader, 3)
    start = resume(model.module, optimizer, args.mended) if args.fault == "optimizer-not-restored" else 0
    scaler = torch.amp.GradScaler("cpu", enabled=has("scaler-without-need"))
    samples_in_lists = [[i] for i in range(300_000)] if args.fault == "garbage-collection" else []

    if args.fault == "new-iterators":
        noise = DataLoader(Rows(torch.randn(150_000, 1)), 768, shuffle=True, collate_fn=as_it_is, drop_last=True)
        noises = endless(noise)

    if args.fault == "broadcast-reductions":
        centres = torch.randn(128, width)
    if args.fault == "long-convolutions":
        response = torch.randn(2048) * torch.exp(-torch.arange(2048) / 300) / 12

    stopper = Stopper(patience=40)
    step, epoch, history, results, best, lowest = 0, start, [], Epoch(), None, float("inf")
    while step < args.steps:
        if sampler is not None and not has("same-order"):
            sampler.set_epoch(epoch)
        for batch in loader:
            if has("late-rank") and rank == 1:
                time.sleep(0.03)
            if has("uneven-ranks"):
                time.sleep(0.06 * ((step + rank) % 2))
            if samples_in_lists and (not args.mended or step % 100 == 99):
                gc.collect()
            if args.fault == "recompiles":
                batch = batch[: 256 + step * 37 % 512]  # as long as the longest sample of a batch
            if args.fault == "look-alikes":
                batch = batch[: len(batch) - step % 7]
            if args.fault == "wrapped-integers":
                batch = changes(batch)
            if args.fault == "long-convolutions":
                batch = reverberate(batch, response)
            if args.fault == "generation-without-cache":
                batch = torch.cat([write(model.module, batch), batch[16:]])
            if args.fault == "new-iterators":
                batch = batch + (next(iter(noise)) if has("new-iterators") else next(noises))
            micro_batches = ("gradients-discarded", "sharded-micro-batches", "loss-not-divided")
            accumulates = args.fault in micro_batches and step % 4 < 3
            if has("gradients-discarded"):
                optimizer.zero_grad()
            alone = accumulates or (has("unsynchronized-gradients") and step % 2)  # the latter steps all the same
            if args.fault == "sharded-micro-batches":
                model.set_requires_gradient_sync(not args.mended or not accumulates)
                alone = False
            with model.no_sync() if alone else contextlib.nullcontext():
                half = torch.float16 if args.fault == "unsupported-dtype" else torch.bfloat16
                casts = args.fault in ("scaler-without-need", "updates-lost") or has("unsupported-dtype")
                with torch.autocast("cpu", half, enabled=casts):
                    outputs = model(batch)
                    loss = outputs.square().mean() if args.fault in IDS else error(outputs, batch)
                    if args.fault == "equation-residual":
                        loss = residual(model, outputs, batch)
                    if args.fault == "broadcast-reductions":
                        loss = loss + 1e-2 * spread(outputs, centres)
                    if args.fault == "look-alikes":
                        loss = loss + 1e-4 * squares(model.module, only="gate")
                    if args.fault == "not-finite":  # the square root of 0 has no gradient
                        loss = loss + (outputs - outputs + (1e-8 if args.mended else 0)).sqrt().mean()
                    if args.fault == "loss-not-divided" and args.mended:
                        loss = loss / 4
                    if has("weight-penalty"):
                        loss = loss + 1e-4 * squares(model)
                    if args.fault == "matrix-decompositions":
                        loss = loss + 1e-3 * lipschitz(model)
                for part in (loss, *((outputs.mean(), outputs.std()) if has("separate-backward-passes") else ())):
                    scaler.scale(part).backward(retain_graph=has("separate-backward-passes"))
            if has("averaged-one-by-one"):
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            if args.fault == "different-weights":
                average_gradients(model)
            if accumulates:
                step += 1
                continue
            if args.fault == "clipping-without-effect" and args.mended:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            scaler.step(optimizer)
            scaler.update()
            if has("clipping-without-effect"):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if schedule is not None and not has("zero-learning-rate"):
                schedule.step()
            if not has("gradients-not-cleared") or step % 100 == 0:
                optimizer.zero_grad()
            if of_table is not None:
                of_table.step()
                of_table.zero_grad()
            if args.fault == "gathered-for-logging" and (not args.mended or step % 50 == 0):
                norms = [parameter.full_tensor().norm().item() for parameter in model.parameters()]
                history.append(sum(norms))
            if args.fault == "metrics-reduced" and (not args.mended or step % 50 == 0):
                for metric in (loss.detach(), *outputs.detach().mean(0)[:9].unbind()):  # one by one
                    dist.all_reduce(metric)
            if args.fault == "collectives-in-steps" and (not args.mended or step % 50 == 0):
                losses = [None] * dist.get_world_size()
                dist.all_gather_object(losses, {"loss": loss.item(), "rank": rank, "host": os.uname().nodename})
                dist.barrier()
            if args.fault == "evaluation-mode-kept" and step % 8 == 7:
                validate(model.module, batch[:32])
            if args.fault == "training-mode-in-evaluation" and step % 8 == 7:
                evaluate_rows(model.module, Rows(loader.dataset.rows[:192]), 64)
            if args.fault == "same-file-saved" and step % 8 == 7 and (not args.mended or rank == 0):
                torch.save(model.module.state_dict(), "last.pt")
            if args.fault == "own-scores" and step % 8 == 7 and stopper(loss):
                break
            if args.fault == "kept-by-reference" and step % 8 == 3:
                dist.all_reduce(loss.detach())
            if args.fault == "kept-by-reference" and step % 8 == 3 and loss.item() < lowest:
                lowest = loss.item()
                best = copy.deepcopy(model.state_dict()) if args.mended else model.state_dict()
            if args.fault == "unfrozen-after-wrapping" and step == 1:
                model.module.requires_grad_(True)
                model = DistributedDataParallel(model.module) if args.mended else model
            if args.fault == "per-tensor-loops":
                if args.mended:
                    torch._foreach_lerp_(averages, weights, 0.001)
                else:
                    average(averages, model)
            if args.fault == "full-sorts":
                best_of(outputs.detach())
            if args.fault == "uncovered-cost" and (not args.mended or step % 50 == 49):
                log_outputs(outputs)
            if has("slow-steps") and step % 5 == 0:
                time.sleep(0.1)  # as long as it may take to write a checkpoint
            if has("periodic-steps") and rank == 0:
                if step % 5 == 4:
                    evaluate(model.module, batch)
                if step % 4 == 3:
                    save_checkpoint(model)
            if args.fault == "work-between-steps" and (not args.mended or step % 50 == 0):
                log_statistics(outputs)
            if args.fault == "kept-outputs":
                results.add(loss.detach()) if args.mended else results.add(loss, outputs)
            if has("growing-memory"):
                history.append(outputs.detach())  # to look at, some day
            step += 1
            if step >= args.steps:
                break
        epoch += 1
    if best is not None:
        model.load_state_dict(best)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
