"""Settings of fully_shard (FSDP2); not of FullyShardedDataParallel (FSDP1).

A unit is what one call of fully_shard groups: its parameters are gathered together.
"""

from __future__ import annotations

from dptune.knobs.knob import Call, Knob, in_call

FSDP = Call(
    "fsdp",
    ("fully_shard",),
    facts="fsdp",
    absent="the script does not call fully_shard",
    paste="fully_shard(module, ..., {})",
)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # by the knobs' words: torch's names

_POLICY = "fully_shard(module, ..., mp_policy=MixedPrecisionPolicy({}={{then}}))"
_PASTED = {word: f"torch.{name}" for word, name in DTYPES.items()}

KNOBS = (
    in_call(
        FSDP,
        "reshard_after_forward",
        bool,
        None,
        "free a unit's gathered parameters after its forward pass; N: reshard to groups of N ranks",
        least=2,
        or_number=True,
        predicted="step",
    ),
    Knob(
        "fsdp.forward_prefetch",
        int,
        "units",
        0,
        "same",
        "number of units prefetched in forward passes",
        "unit.set_modules_to_forward_prefetch([...])  # for each unit, the next {then} in forward order",
        least=0,
        call=FSDP,
        predicted="step",
    ),
    Knob(
        "fsdp.backward_prefetch",
        int,
        "units",
        1,
        "same",
        "number of units prefetched in backward passes",
        "unit.set_modules_to_backward_prefetch([...])  # for each unit, the next {then} in backward order",
        least=1,
        call=FSDP,
        predicted="step",
    ),
    Knob(
        "fsdp.param_dtype",
        str,
        "",
        None,
        "changes",
        "dtype in which units gather their parameters and compute",
        _POLICY.format("param_dtype"),
        tuple(DTYPES),
        pasted=_PASTED,
        call=FSDP,
        predicted="bound",
    ),
    Knob(
        "fsdp.reduce_dtype",
        str,
        "",
        None,
        "changes",
        "dtype in which units reduce-scatter their gradients",
        _POLICY.format("reduce_dtype"),
        tuple(DTYPES),
        pasted=_PASTED,
        call=FSDP,
        predicted="step",
    ),
    Knob(
        "fsdp.unshard_in_backward",
        bool,
        "",
        True,
        "same",
        "gather units again in backward passes; set to false for units that hold only embeddings",
        "unit.set_unshard_in_backward({then})  # only for units whose weights the backward pass does not read",
        call=FSDP,
    ),
    Knob(
        "fsdp.reshard_after_backward",
        bool,
        "",
        True,
        "same",
        "free gathered parameters after backward passes; the script can keep them between the micro-batches of a step",
        "model.set_reshard_after_backward(micro == accumulate - 1)  # before each backward pass, micro from 0 on",
        call=FSDP,
    ),
    Knob(
        "fsdp.no_sync",
        bool,
        "",
        False,
        "same",
        "reduce-scatter gradients only on the last micro-batch of a step",
        "model.set_requires_gradient_sync(micro == accumulate - 1)  # before each backward pass, micro from 0 on",
        paste_off="model.set_requires_gradient_sync(True)",
        call=FSDP,
        predicted="step",
    ),
)
