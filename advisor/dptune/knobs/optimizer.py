"""Settings of an optimizer."""

from __future__ import annotations

from dptune.knobs.knob import Call, in_call

WITH_FOREACH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)
_WITH_BETAS = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam")

OPTIMIZER = Call(
    "optimizer",
    (*WITH_FOREACH, "LBFGS", "Muon", "SparseAdam"),
    facts="optimizers",
    absent="the script creates no optimizer",
    paste="Optimizer(parameters, ..., {})",
)

KNOBS = (
    in_call(
        OPTIMIZER,
        "lr",
        float,
        None,
        "learning rate of the first parameter group; other groups are scaled in proportion",
        numerics="changes",
        least=1e-12,
        positions=(1,),
        predicted="step",
        takes_no_time=True,
    ),
    in_call(
        OPTIMIZER,
        "betas",
        str,
        "0.9,0.999",
        "Adam betas: decay rates of the moment estimates",
        numerics="changes",
        least=0,
        below=1,
        list_of_numbers=True,
        classes=_WITH_BETAS,
        positions=(2,),
        paste="Optimizer(parameters, ..., betas=({then}))",
        predicted="step",
        takes_no_time=True,
    ),
    in_call(
        OPTIMIZER,
        "eps",
        float,
        1e-8,
        "Adam epsilon: added to the denominator for stability",
        numerics="changes",
        least=0,
        classes=_WITH_BETAS,
        positions=(3,),
        predicted="step",
        takes_no_time=True,
    ),
    in_call(
        OPTIMIZER,
        "fused",
        bool,
        False,
        "update all parameters in one kernel",
        classes=("Adagrad", "Adam", "AdamW", "SGD"),
        excludes="foreach",
        predicted="bound",
    ),
    in_call(
        OPTIMIZER,
        "foreach",
        bool,
        False,
        "update parameters in lists, not one by one",
        classes=WITH_FOREACH,
        positions=(5, 6, 8),
        excludes="fused",
        predicted="bound",
    ),
)
