"""Predict step time after changes, from a recording alone.

RUN is a run folder of `dptune profile`, or the name of a recording in dptune-runs (default: the latest); for GPU steps
also traces. dptune models the step (compute of each rank, when each gradient is ready, communication) and replays it
with the changes. The report starts with the error of the replay without changes. If that error is too large, only an
upper bound is given.

Without options, dptune predicts common changes, one at a time. For DistributedDataParallel on CPUs it instead searches
for the best bucket sizes and the best combination of changes that leaves training results unchanged. --set gives
changes that are predicted together. --sweep tries several values of one knob on top of --set; without values it tries
common ones. --strategies compares ways to share the work among the same ranks: less frequent communication, sharding
the optimizer (ZeRO-1) or everything (FSDP, HSDP), by memory per rank and bounds of the step time. For the best
predictions, measure the links with `dptune links`; to measure a change by running it, use `dptune verify`.

settings for --set and --sweep, besides knobs (`dptune rules knobs`):
  accumulation.micro_batches  backward passes per optimizer step; combine fewer
                              passes with a larger loader.batch_size
  world_size, nodes           up to 8 times the recorded ranks, same batch each
  straggler.removed           the straggler's extra work disappears
  straggler.balanced          work of each step is spread evenly over ranks
  fsdp.units                  number of fully_shard units
  fsdp.blocks_per_unit        blocks of the model in each of them
  wrapper                     ddp, or fsdp with fsdp.units
  allreduce.algorithm         ring, tree or hierarchical
  link.alpha_us               another link, as `dptune links` measures it
    link.gb_per_s
  link.between_alpha_us       the network between nodes
    link.between_gb_per_s
  link.within_alpha_us        an all-reduce within a host, for
    link.within_gb_per_s      fsdp.within_hosts

settings for GPU steps, from recordings and traces:
  host.times, compute.times   factor on host or compute time
  batch.times                 factor on the samples of each batch
  syncs.removed               no host call waits for the device
  copies.non_blocking         copies block neither the script nor kernels
  cuda.graphs                 forward and backward run as CUDA graphs
  attention.sdpa              attention in one fused kernel
  fsdp.prefetch               all-gathers are issued ahead of their use
  gpu.model                   another GPU model, with the same host and links
  also precision, optimizer and link settings, and ddp.comm_hook fp16, bf16

Peak memory of a rank, and whether it fits, is shown for changes of the batch, resharding, wrapper, fsdp.units,
fsdp.within_hosts (HSDP), fsdp.offload_policy, fsdp and model dtypes, precision.autocast, optimizer.name,
optimizer.sharded (ZeRO-1), optimizer.foreach, optimizer.fused, memory.checkpointing and world_size. --model
FILE:FUNCTION counts the peak a second time with torch's memory tracker: the script's model runs under fake tensors in
its own process, which allocates no memory and sends nothing.

examples:
  dptune whatif
  dptune whatif --set ddp.no_sync=true
  dptune whatif --set ddp.comm_hook=fp16 --sweep ddp.bucket_cap_mb
  dptune whatif --sweep ddp.bucket_cap_mb=0.5,1,5,25 --format json
  dptune whatif --world-size 4,8,16
  dptune whatif --strategies
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.parsing import Parser
from dptune.commands.shared.recordings import RUN_HELP, resolved_singly
from dptune.commands.shared.setting import parsed
from dptune.errors import UsageError
from dptune.present import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dptune.knobs import Value

_USUAL = {
    "ddp.bucket_cap_mb": "default,0.05,0.1,0.2,0.5,1,2,5,10,25,50,100",
    "ddp.comm_hook": "none,fp16,bf16",
    "loader.num_workers": "1,2,4,8",
}


def arguments(parser: Parser) -> None:
    """Declare the options."""
    from dptune.commands.shared.reading import gpu_option, reading_options

    parser.add_argument("paths", nargs="*", metavar="RUN", help=RUN_HELP)
    change = parser.add_argument_group("the changes")
    change.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KNOB=VALUE",
        help="a knob of `dptune rules knobs`, or one of the settings below",
    )
    change.add_argument(
        "--sweep", action="append", metavar="KNOB[=V,V,...]", help="try several values of one knob, on top of --set"
    )
    change.add_argument(
        "--world-size",
        action="append",
        metavar="N[,N,...]",
        help="try other numbers of ranks (same as --sweep world_size=N,N)",
    )
    change.add_argument("--strategies", action="store_true", help="compare ways to share the work: DDP, ZeRO, FSDP")
    parser.add_argument(
        "--model",
        metavar="FILE:FUNCTION",
        help="also count peak memory with torch's memory tracker: FUNCTION takes a rank's batch size and returns the "
        "model, a function (parameters -> optimizer) and a function (model -> loss of a batch)",
    )
    parser.add_argument("--links", type=Path, metavar="FILE", help="link measurements of `dptune links`")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    gpu_option(parser)
    reading_options(parser)


def run(args: argparse.Namespace) -> int:
    """Predict, and print it; 1 where nothing could be predicted."""
    from dptune.advise.engine import trust_in
    from dptune.advise.trust import NO_VERDICT
    from dptune.capture.tracked_memory import check
    from dptune.commands.shared.reading import latest, measured_of
    from dptune.present.ink import paint
    from dptune.present.sections.whatif import page
    from dptune.runfile.paths import RUNS
    from dptune.whatif.memory.tracking import tracked
    from dptune.whatif.predicting import compare, only_memory, predict, search

    wanted = _wanted(args)
    if args.strategies and wanted:
        raise UsageError("--strategies cannot be combined with changes", "ask for the changes without it")
    if args.model is not None and not wanted:
        raise UsageError("--model needs changes", "like --set fsdp.reshard_after_forward=false")
    function = None if args.model is None else check(args.model)
    args.paths = resolved_singly(args.paths)
    named = shlex.join(args.paths)
    found, measured = measured_of(
        args.paths or [latest(RUNS)], args.jobs, cached=not args.no_cache, links=args.links, gpu=args.gpu
    )
    trust = trust_in(found, measured)
    why = next((finding.text for finding in trust.findings if finding.level == "unjudgeable"), "")
    if why:
        what_if = only_memory(f"{NO_VERDICT}: {why}", found, measured, wanted)
    elif args.strategies:
        what_if = compare(found, measured)
    else:
        what_if = predict(found, measured, wanted) if wanted else search(found, measured)
    if function is not None:
        memory = tracked(what_if.memory, function, measured, list(found.facts.values()))
        what_if = what_if.model_copy(update={"memory": memory})
    limits = [partial_finding.text for partial_finding in trust.findings if partial_finding.level == "partial"]
    what_if = what_if.model_copy(update={"limits": [*what_if.limits, *limits], "recorded": found.record is not None})
    if args.format == "json":
        sys.stdout.write(what_if.model_dump_json(indent=1) + "\n")
    else:
        sys.stdout.write(paint(page(what_if, terminal.width(sys.stdout), named), terminal.colours(sys.stdout)))
    steps = any(prediction.known("low_ns") is not None for prediction in what_if.predictions)
    peaks = any(
        prediction.known(name) is not None for prediction in what_if.memory for name in ("peak_bytes", "tracked_bytes")
    )
    return 0 if what_if.curve or what_if.strategies or steps or peaks else 1


def _wanted(args: argparse.Namespace) -> list[dict[str, Value]]:
    """The sets of changes: what is set, and with it each value of the sweep; none where the best is looked for."""
    from dptune.whatif.scenarios import named

    _check_single(args.settings)
    together = parsed(args.settings, named)
    if {"ddp.bucket_cap_mb", "ddp.bucket_cap_mb_list"} <= together.keys():
        raise UsageError("bucket sizes are set twice: one size for all, and a list", "leave out one of them")
    sweeps = [*(args.sweep or ()), *(f"world_size={sizes}" for sizes in args.world_size or ())]
    if not sweeps:
        return [together] if together else []
    if len(sweeps) > 1:
        raise UsageError("only one sweep at a time", "set one of them: --set world_size=8")
    swept = _swept(sweeps[0])
    twice = swept[0].keys() & together.keys()
    if twice:
        raise UsageError(f"{min(twice)} is both set and swept", "leave out one of them")
    return [{**together, **setting} for setting in swept]


def _check_single(words: Sequence[str]) -> None:
    """Raises UsageError where several values are set that are to be swept."""
    from dptune.whatif.scenarios import named

    for word in words:
        name, _, text = word.partition("=")
        if "," in text and named(name).kind is not str:
            raise UsageError(f"--set takes one value: '{word:.80}'", f"to try several: --sweep {word:.80}")


def _swept(text: str) -> list[dict[str, Value]]:
    from dptune.whatif.scenarios import named

    name, given, values = text.partition("=")
    knob = named(name)
    if knob.list_of_numbers:
        raise UsageError(
            f"{name} cannot be swept: its values are lists",
            f"give one: --set {name}={knob.default or '1,8,25'}",
        )
    if not given:
        values = _USUAL.get(name, "true,false" if knob.kind is bool else "")
    if not values:
        usual = ",".join(knob.choices or (("true", "false") if knob.kind is bool else ("2", "4", "8")))
        raise UsageError(f"--sweep {name} needs values", f"like --sweep {name}={usual}")
    return [{name: value} for value in dict.fromkeys(map(knob.parse, values.split(",")))]
