"""Settings of DistributedDataParallel."""

from __future__ import annotations

from dptune.knobs.knob import Call, Knob, in_call

DDP = Call(
    "ddp",
    ("DistributedDataParallel",),
    facts="ddp",
    absent="the script made no DistributedDataParallel",
    paste="DistributedDataParallel(model, ..., {})",
)

KNOBS = (
    in_call(
        DDP,
        "bucket_cap_mb",
        float,
        None,
        "how many MiB of gradients DistributedDataParallel sends in one all-reduce",
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
        "the size of each bucket in the order of the backward pass, the last that of all further ones, like 1,8,25",
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
        "size of the first bucket, where the others have torch's default",
        "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = int({then} * 2**20)  # before DistributedDataParallel is made",
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
        "what gradients are turned into before they are exchanged",
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
        "look in every step for parameters that got no gradient",
        positions=(7, 8),
    ),
    in_call(DDP, "static_graph", bool, False, "the same graph in every step, promised", positions=(10, 11)),
    in_call(
        DDP,
        "gradient_as_bucket_view",
        bool,
        False,
        "gradients lie in the buckets and are not copied there",
        positions=(9, 10),
        predicted="bound",
    ),
    in_call(
        DDP,
        "batched_grad_copy",
        bool,
        False,
        "copy all gradients of a bucket into it in one operation",
        positions=(17, 18),
    ),
    in_call(
        DDP,
        "broadcast_buffers",
        bool,
        True,
        "send rank 0's buffers, such as batch norm's statistics, before each forward pass",
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
        "all-reduce gradients on the last micro-batch of an accumulated step only",
        "with model.no_sync() if micro < accumulate - 1 else contextlib.nullcontext():\n"
        "    loss = model(x)  # forward and backward both inside\n"
        "    loss.backward()  # micro: from 0 on in each step",
        paste_off="loss.backward()  # outside of model.no_sync()",
        call=DDP,
        predicted="step",
    ),
)
