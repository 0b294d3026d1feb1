"""Train units of fully_shard on two ranks, once for each set of settings, and print a line of JSON for each.

Torch is imported once, and each rank is a fork. Two micro-batches make a step, and in the third step one does. Units
gather 8, 1, 2, 3 and 4 KiB, the last of these the root's.
"""

import json
import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from dptune.capture.effect import without_effect
from dptune.capture.injected.applying import apply
from dptune.capture.injected.applying.requested import asked
from dptune.capture.injected.observe.objects import fsdp
from dptune.capture.injected.observe.places import Places
from dptune.runfile.facts import Facts

STEPS, SHORT = 5, 2  # of the last step the collectives are kept: dptune has learned the number of micro-batches


def train(rank, ranks, store, settings, words):
    places = Places()
    apply(settings)
    places.install()
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = logged()
    model, optimizer = built("no_table" in words)
    if "keeps" in words:
        model.set_reshard_after_backward(False)
    for name, unit in model.named_children():
        unit.register_forward_pre_hook(lambda *_, name=name: log.append(["run", int(name), ""]))
    torch.manual_seed(rank)
    for step in range(STEPS):
        log.clear()
        passes = 1 if step == SHORT else 2
        for micro in range(passes):
            if "by_itself" in words:
                model.set_requires_gradient_sync(micro == passes - 1)
            batch = torch.randn(8, 16) if "no_table" in words else torch.randint(0, 128, (8,))
            (model(batch) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    total = sum(parameter.full_tensor().detach().double().abs().sum() for parameter in model.parameters())
    if rank == 0:
        facts = Facts(0, fsdp=fsdp(places), refused=asked.refused)
        units = [vars(unit) for unit in facts.fsdp]
        line = {"total": float(total), "log": log, "units": units, "lacks": without_effect(settings, [facts])}
        line["compiler"] = "torch._dynamo.symbolic_convert" in sys.modules
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def built(without_table):
    table = [] if without_table else [nn.Embedding(128, 16)]
    blocks = [nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(layers)]) for layers in (1, 2, 3)]
    model = nn.Sequential(*table, *blocks, nn.Linear(16, 64, bias=False))
    for unit in (*table, *blocks):
        fully_shard(unit)  # over all ranks: each call makes a mesh of its own
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def logged():
    """The collectives of units from now on, as they are called: which, of how many times 256 elements, the dtype."""
    log = []
    for word, names in (
        ("gather", ("all_gather_single", "all_gather_into_tensor")),
        ("reduce", ("reduce_scatter_single", "reduce_scatter_tensor")),
    ):
        name = next(name for name in names if hasattr(dist, name))  # the second is that of an older torch
        act = getattr(dist, name)

        def called(*args, act=act, word=word, **kwargs):
            tensors = [thing for thing in (*args, *kwargs.values()) if isinstance(thing, torch.Tensor)]
            whole = max(tensors, key=torch.Tensor.numel)
            log.append([word, whole.numel() // 256, str(whole.dtype).removeprefix("torch.")])
            return act(*args, **kwargs)

        setattr(dist, name, called)
    return log


if __name__ == "__main__":
    for settings, words in json.loads(sys.argv[1]):
        with tempfile.TemporaryDirectory() as folder:
            ranks = 4 if "four" in words else 2
            children = []
            for rank in range(ranks):
                child = os.fork()
                if not child:
                    failed = 1
                    try:
                        train(rank, ranks, f"{folder}/store", settings, words)
                        failed = 0
                    except Exception:
                        traceback.print_exc()
                    finally:
                        sys.stderr.flush()
                        os._exit(failed)
                children.append(child)
            for child in children:
                if os.waitpid(child, 0)[1]:
                    sys.exit(f"a rank failed with {settings}")
