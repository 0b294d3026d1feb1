"""Settings of DataLoader."""

from __future__ import annotations

from dptune.knobs.knob import Call, in_call

LOADER = Call(
    "loader",
    ("DataLoader",),
    facts="loaders",
    absent="the script takes no batch from a DataLoader",
    paste="DataLoader(dataset, ..., {})",
)

KNOBS = (
    in_call(
        LOADER,
        "num_workers",
        int,
        0,
        "number of DataLoader worker processes",
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
        "batches prepared ahead per worker",
        unit="batches",
        least=1,
        predicted="bound",
    ),
    in_call(LOADER, "persistent_workers", bool, False, "keep workers across epochs", predicted="step"),
    in_call(
        LOADER,
        "pin_memory",
        bool,
        False,
        "put batches into page-locked memory: copies to the GPU are faster and can overlap",
        positions=(7,),
        predicted="bound",
    ),
    in_call(
        LOADER,
        "batch_size",
        int,
        1,
        "samples per batch and rank",
        unit="samples",
        numerics="changes",
        least=1,
        positions=(1,),
        excludes="batch_sampler",
        predicted="step",
    ),
)
