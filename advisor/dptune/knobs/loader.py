"""Settings of DataLoader."""

from __future__ import annotations

from dptune.knobs.knob import Call, in_call

LOADER = Call(
    "loader",
    ("DataLoader",),
    facts="loaders",
    absent="the script drew no batch from a DataLoader",
    paste="DataLoader(dataset, ..., {})",
)

KNOBS = (
    in_call(
        LOADER,
        "num_workers",
        int,
        0,
        "how many processes prepare batches beside the training process",
        unit="processes",
        least=0,
        positions=(5,),
        paste="DataLoader(dataset, ..., num_workers={then}, persistent_workers=True)",
        predicted="step",
    ),
    in_call(
        LOADER,
        "prefetch_factor",
        int,
        2,
        "how many batches each worker prepares ahead",
        unit="batches",
        least=1,
        predicted="bound",
    ),
    in_call(LOADER, "persistent_workers", bool, False, "keep the workers from one epoch to the next", predicted="step"),
    in_call(
        LOADER,
        "pin_memory",
        bool,
        False,
        "put batches into page-locked memory, from which a GPU copies faster and beside other work",
        positions=(7,),
        predicted="bound",
    ),
    in_call(
        LOADER,
        "batch_size",
        int,
        1,
        "samples of a batch on each rank",
        unit="samples",
        numerics="changes",
        least=1,
        positions=(1,),
        excludes="batch_sampler",
        predicted="step",
    ),
)
