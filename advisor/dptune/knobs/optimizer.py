"""Settings of an optimizer."""

from __future__ import annotations

from dptune.knobs.knob import Call, in_call

_WITH_FOREACH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)
_WITH_BETAS = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam")

OPTIMIZER = Call(
    "optimizer",
    (*_WITH_FOREACH, "LBFGS", "Muon", "SparseAdam"),
    facts="optimizers",
    absent="the script made no optimizer",
    paste="Optimizer(parameters, ..., {})",
)

KNOBS = (
    in_call(
        OPTIMIZER,
        "lr",
        float,
        None,
        "the learning rate that the optimizer is made with: of its first parameter group, the others in proportion",
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
        "how much of its two running means an optimizer like Adam keeps in a step",
        numerics="changes",
        least=0,
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
        "what an optimizer like Adam adds to the root that it divides by",
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
        classes=_WITH_FOREACH,
        positions=(5, 6, 8),
        excludes="fused",
        predicted="bound",
    ),
)
