"""Settings of DistributedDataParallel."""

from __future__ import annotations

from dptune.knobs.knob import Call, Knob, in_call

DDP = Call(
    "ddp",
    ("DistributedDataParallel",),
    facts="ddp",
    absent="the script creates no DistributedDataParallel",
    paste="DistributedDataParallel(model, ..., {})",
)

KNOBS = (
    in_call(
        DDP,
        "bucket_cap_mb",
        float,
        None,
        "DDP bucket size in MiB: gradients per all-reduce",
        unit="MiB",
        least=0.001,
        positions=(6, 7),
        predicted="step",
    ),
    in_call(
        DDP,
        "bucket_cap_mb_list",
        str,
        None,
        "DDP bucket sizes in backward order, e.g. 1,8,25; the last one repeats",
        unit="MiB",
        least=1e-6,  # a byte
        list_of_numbers=True,
        positions=(16, 17),
        paste="DistributedDataParallel(model, ..., bucket_cap_mb_list=[{then}])",
        predicted="step",
    ),
    Knob(
        "ddp.first_bucket_mb",
        float,
        "MiB",
        1.0,
        "same",
        "size of DDP's first bucket, if bucket_cap_mb has its default",
        "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = int({then} * 2**20)  # before DDP is created",
        least=0.001,
        call=DDP,
        predicted="step",
    ),
    Knob(
        "ddp.comm_hook",
        str,
        "",
        "none",
        "changes",
        "DDP communication hook (gradient compression)",
        "model.register_comm_hook(...)  # {then}; see torch.distributed.algorithms.ddp_comm_hooks",
        ("none", "fp16", "bf16", "powersgd"),
        call=DDP,
        predicted="step",
    ),
    in_call(
        DDP,
        "find_unused_parameters",
        bool,
        False,
        "search for parameters without a gradient in every step",
        positions=(7, 8),
    ),
    in_call(DDP, "static_graph", bool, False, "promise DDP that the autograd graph never changes", positions=(10, 11)),
    in_call(
        DDP,
        "gradient_as_bucket_view",
        bool,
        False,
        "gradients are views into the all-reduce buckets (saves a copy)",
        positions=(9, 10),
        predicted="bound",
    ),
    in_call(
        DDP,
        "batched_grad_copy",
        bool,
        False,
        "copy all gradients of a bucket in one operation",
        positions=(17, 18),
    ),
    in_call(
        DDP,
        "broadcast_buffers",
        bool,
        True,
        "broadcast rank 0's buffers (e.g. batch norm statistics) before each forward pass",
        numerics="changes",
        positions=(4,),
        predicted="bound",
    ),
    Knob(
        "ddp.no_sync",
        bool,
        "",
        False,
        "same",
        "all-reduce gradients only on the last micro-batch of a step",
        "with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():\n"
        "    loss = model(x)  # forward and backward both inside\n"
        "    loss.backward()  # micro: from 0 on in each step",
        paste_off="loss.backward()  # outside of model.no_sync()",
        call=DDP,
        predicted="step",
    ),
)
