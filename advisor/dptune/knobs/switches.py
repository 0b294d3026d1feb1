"""Global switches of torch, and what is switched around parts of a script: precision, compilation, cuDNN and others."""

from __future__ import annotations

from dptune.knobs.knob import Knob

KNOBS = (
    Knob(
        "precision.float32_matmul",
        str,
        "",
        "highest",
        "changes",
        "precision of float32 matrix products: 'highest' is full fp32, 'high' is TF32 on tensor cores",
        'torch.set_float32_matmul_precision("{then}")',
        ("highest", "high", "medium"),
        switch="float32_matmul_precision",
        predicted="bound",
    ),
    Knob(
        "precision.autocast",
        str,
        "",
        "off",
        "changes",
        "autocast: run precision-tolerant operators in 16 bits",
        "with torch.autocast(device.type, dtype={then}):\n    # the forward pass and the loss",
        ("off", "bf16", "fp16"),
        predicted="bound",
        pasted={"bf16": "torch.bfloat16", "fp16": "torch.float16"},
    ),
    Knob(
        "memory.checkpointing",
        bool,
        "",
        False,
        "same",
        "activation checkpointing: recompute forward passes in backward instead of keeping their activations",
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        paste_off="block(x)  # instead of checkpoint(block, x)",
    ),
    Knob(
        "compile.model",
        bool,
        "",
        False,
        "same",
        "compile the model with torch.compile; fused kernels may draw other random numbers, for example for dropout",
        "model = torch.compile(model)  # after DistributedDataParallel has wrapped it",
    ),
    Knob(
        "cudnn.benchmark",
        bool,
        "",
        False,
        "same",
        "benchmark cuDNN algorithms per shape and use the fastest",
        "torch.backends.cudnn.benchmark = {then}",
        switch="backends.cudnn.benchmark",
    ),
    Knob(
        "cudnn.allow_tf32",
        bool,
        "",
        True,
        "changes",
        "allow TF32 in cuDNN convolutions",
        "torch.backends.cudnn.allow_tf32 = {then}",
        switch="backends.cudnn.allow_tf32",
    ),
)
