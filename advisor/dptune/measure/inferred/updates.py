"""Optimizers, the scaler of gradients and torch.compile, from the names that torch gives their ranges and operators."""

from __future__ import annotations

import re
from statistics import median

import numpy as np

from dptune.advice import Confidence
from dptune.measure.inferred.finding import Inferred
from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.inferred.precision import update_dtypes
from dptune.measure.intervals import Ints
from dptune.runfile.compilation import CompileFacts
from dptune.runfile.facts import OptimizerFacts

_FUSED = re.compile(r"aten::_fused_")
_FOREACH = re.compile(r"aten::_foreach_(?!zero_|add_?$)")  # fused ones count their steps with _foreach_add_
_SINGLE = re.compile(r"aten::(addcdiv_|addcmul_|add_|mul_|lerp_|sqrt|div_)$")
_SCALED = re.compile(r"aten::_amp_(foreach_non_finite_check_and_unscale_|update_scale_)")
_OPERATOR = re.compile(r"aten::")
_AROUND = ("ZeroRedundancyOptimizer",)  # steps another one
_MANY = 3  # operators of single tensors for each parameter, at least, in a loop over them: SGD with momentum has two


def updates(host: HostEvents) -> list[Inferred]:
    """The optimizers of the rank by class, whether gradients are scaled, and whether anything is compiled.

    Optimizers that carry no range, as those written by hand, are not seen: none is inferred where there is no range.
    """
    found = []
    if len(host.updates):
        found.append(_optimizers(host))
        scaled = len(host.rows(_SCALED)) > 0
        if scaled or len(_inside(host, _OPERATOR, host.updates)):  # apex and Megatron scale by kernels of their own
            found.append(Inferred.of("grad_scaler", scaled, "high"))
    elif host.forwards and not host.trains:  # without a backward pass there is nothing to update
        found += [Inferred.of("optimizers", [], "medium"), Inferred.of("grad_scaler", False, "medium")]
    if host.trains:
        found.append(Inferred.of("compiled", CompileFacts(where=[None]) if host.compiles else None, "medium"))
    return found


def _optimizers(host: HostEvents) -> Inferred:
    columns = host.columns
    by_name: dict[str, list[int]] = {}
    for row in host.updates.tolist():
        name = re.sub(r"^Optimizer\.step#|\.step$", "", columns.name(row))
        by_name.setdefault(name, []).append(row)
    facts: list[OptimizerFacts] = []
    sure: list[Confidence] = []
    for name in sorted(by_name, key=lambda key: (key not in _AROUND, -len(by_name[key]))):
        rows = np.array(by_name[name], dtype=np.int64)
        optimizer = OptimizerFacts(name=name)
        fused, foreach, single = (len(_inside(host, pattern, rows)) for pattern in (_FUSED, _FOREACH, _SINGLE))
        if fused or name.startswith("Fused"):  # as apex and DeepSpeed call theirs, which are no operators of torch
            optimizer.fused = True
        elif foreach:
            optimizer.fused, optimizer.foreach = False, True
        elif single > _MANY * len(rows):
            optimizer.fused = optimizer.foreach = False
        sure.append("high" if fused or foreach else "medium")
        facts.append(optimizer)
    parts: dict[str, Confidence] = {"name": "high", "fused": sure[0], "foreach": sure[0]}
    if dtypes := update_dtypes(host):
        parts["dtypes"] = "high" if len(dtypes) == 1 else "low"
        for optimizer in facts:
            optimizer.dtypes = dtypes
    if len(facts) == 1 and (tensors := _tensors(host)):
        facts[0].parameter_tensors, parts["parameter_tensors"] = tensors, "medium"
    return Inferred.of("optimizers", facts, "high", **parts)


def _inside(host: HostEvents, pattern: re.Pattern[str], rows: Ints) -> Ints:
    found = host.rows(pattern)
    return found[host.inside(found, rows)]


def _tensors(host: HostEvents) -> int:
    """Parameters that get a gradient in a backward pass, of which an optimizer may hold fewer; 0: none was seen."""
    return round(median(counts)) if (counts := host.gradients_by_pass()) else 0
