"""Every figure a rule may read; a figure that could not be measured says why.

A model here derives from `Figures`. A field typed `Figure[int]` reads as an `int`; where the figure could not be
measured, reading it raises `Missing` with the reason, so that no rule computes with a hole. In JSON the hole is `null`
and the reason stands under `missing`.

Units are in the names: `_ns` nanoseconds, `_bytes` bytes, `_share` a fraction of the step between 0 and 1,
`_gb_per_s` 1e9 bytes per second.

The modules are named as the rooms of `dptune.measure`: steps, device, host, exchange.
"""

from __future__ import annotations

from dptune.measured.account import CLASSES, IDLE, IDLE_CAUSES, Account, DeviceFigures, StepAccount
from dptune.measured.collectives import COLLECTIVES, Collective, collective
from dptune.measured.device import (
    PATH,
    CopyFigures,
    CopySite,
    CriticalPath,
    GapFigures,
    KernelFigures,
    KernelTime,
    MatmulFigures,
    MemoryFigures,
    OnPath,
    Phase,
    PhaseFigures,
)
from dptune.measured.exchange import (
    CollectiveFigures,
    CommunicationFigures,
    LinkFigures,
    LinkSize,
    MatchBasis,
    OverlapFigures,
    Purpose,
    ShardingFigures,
)
from dptune.measured.figure import ABSENT, Figure, Figures, Missing, Model, digits
from dptune.measured.gathers import ShardMessages, shard_messages
from dptune.measured.host import (
    AttributionFigures,
    CodePhase,
    CodeSite,
    Decomposition,
    EagerAttention,
    FunctionOperators,
    IdlePart,
    LaunchFigures,
    LaunchIdleFigures,
    LongConvolution,
    OperatorLoop,
    OptimizerLaunches,
    QueuedSteps,
    SourceFigures,
    SourceTime,
    UncachedGeneration,
    UserCodeFigures,
    by_profiler,
)
from dptune.measured.lag import (
    LAG_CAUSES,
    LAG_CLASSES,
    OF_SCRIPT,
    ArrivalFigures,
    DifferenceKind,
    LagCause,
    LagDifference,
    StepLag,
    StragglerFigures,
)
from dptune.measured.load import LoadFigures
from dptune.measured.naming import short_name
from dptune.measured.place import Place
from dptune.measured.run import Loss, Measured, RankFigures
from dptune.measured.steps import (
    CUT_SHORT,
    AccumulationFigures,
    InputFigures,
    NoiseFigures,
    PreparingFigures,
    SetAsideStep,
    StepBasis,
    StepGroup,
    StepsFigures,
    StepTime,
)

__all__ = [
    "ABSENT",
    "CLASSES",
    "COLLECTIVES",
    "CUT_SHORT",
    "IDLE",
    "IDLE_CAUSES",
    "LAG_CAUSES",
    "LAG_CLASSES",
    "OF_SCRIPT",
    "PATH",
    "Account",
    "AccumulationFigures",
    "ArrivalFigures",
    "AttributionFigures",
    "CodePhase",
    "CodeSite",
    "Collective",
    "CollectiveFigures",
    "CommunicationFigures",
    "CopyFigures",
    "CopySite",
    "CriticalPath",
    "Decomposition",
    "DeviceFigures",
    "DifferenceKind",
    "EagerAttention",
    "Figure",
    "Figures",
    "FunctionOperators",
    "GapFigures",
    "IdlePart",
    "InputFigures",
    "KernelFigures",
    "KernelTime",
    "LagCause",
    "LagDifference",
    "LaunchFigures",
    "LaunchIdleFigures",
    "LinkFigures",
    "LinkSize",
    "LoadFigures",
    "LongConvolution",
    "Loss",
    "MatchBasis",
    "MatmulFigures",
    "Measured",
    "MemoryFigures",
    "Missing",
    "Model",
    "NoiseFigures",
    "OnPath",
    "OperatorLoop",
    "OptimizerLaunches",
    "OverlapFigures",
    "Phase",
    "PhaseFigures",
    "Place",
    "PreparingFigures",
    "Purpose",
    "QueuedSteps",
    "RankFigures",
    "SetAsideStep",
    "ShardMessages",
    "ShardingFigures",
    "SourceFigures",
    "SourceTime",
    "StepAccount",
    "StepBasis",
    "StepGroup",
    "StepLag",
    "StepTime",
    "StepsFigures",
    "StragglerFigures",
    "UncachedGeneration",
    "UserCodeFigures",
    "by_profiler",
    "collective",
    "digits",
    "shard_messages",
    "short_name",
]
