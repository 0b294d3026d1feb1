"""Measure latency and bandwidth of the links between ranks.

Times all-reduce, all-gather, reduce-scatter and p2p over message sizes from 4 KiB to 256 MiB within the time limit, and
fits time = alpha + bytes / beta to each: alpha is the latency, beta the bandwidth. Use the backend, ranks and nodes of
the training, and keep the links free of other traffic. Without options it uses the number of ranks of the latest
recording, if that ran on one host, and measures only what that run communicates (DistributedDataParallel: all-reduces
up to the size of the gradients). The result goes to dptune-runs/links.json, where `dptune report` finds it for runs
next to it with the same backend and number of ranks.

Calls are timed in back-to-back batches on all ranks together; a p2p call is half of a ping-pong between the first and
the last rank. GB/s is beta as bus bandwidth (busbw of nccl-tests). Ctrl-C ends the sweep and keeps what was measured.

examples:
  dptune links
  dptune links --nproc-per-node 2
  dptune links --nproc-per-node 8 --kinds all_reduce --max-size 1g
  dptune links --nproc-per-node 2 --sizes 64k,1m,16m --seconds 20 --format json

on several nodes, each with its own i; node 0 has the result:
  dptune links --nnodes 2 --node-rank i --master-addr HOST --nproc-per-node 8

with your own launcher, which starts dptune once per rank:
  srun dptune links
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.commands.shared.amounts import positive, seconds
from dptune.commands.shared.torchrun_options import torchrun_arguments, torchrun_of
from dptune.errors import RunError, UsageError
from dptune.present.visible import visible
from dptune.runfile.links import LINKS_JSON
from dptune.runfile.paths import RUNS

if TYPE_CHECKING:
    from dptune.capture.launch import Launch
    from dptune.capture.links import SweepRequest
    from dptune.runfile.links import LinkRecord, SizeTimes

_KIB = 1024
SIZES = tuple(4 * _KIB * 4**step for step in range(9))  # 4 KiB to 256 MiB
LEAST_MOST = 16 * _KIB**2  # bytes up to which it measures in any case: smaller ones do not determine beta well
_UNITS = {"": 1, "k": _KIB, "m": _KIB**2, "g": _KIB**3}
_LARGEST = 64 * _KIB**3


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--kinds",
        type=_kinds,
        metavar="LIST",
        help="some of all_reduce, all_gather, reduce_scatter, p2p (default: all)",
    )
    sizes = what.add_mutually_exclusive_group()
    sizes.add_argument(
        "--sizes", type=_sizes, metavar="LIST", help="message sizes, like 4k,1m,64m (default: 4k to 256m)"
    )
    sizes.add_argument("--max-size", type=_size, metavar="SIZE", help="largest message size")
    what.add_argument(
        "--backend",
        default="",
        metavar="NAME",
        help="backend of torch.distributed (default: nccl where there are GPUs, else gloo)",
    )
    what.add_argument(
        "--repeats",
        type=positive,
        default=7,
        metavar="N",
        help="timed batches of back-to-back calls per size (default: 7)",
    )
    what.add_argument(
        "--seconds",
        type=seconds,
        default=60.0,
        metavar="S",
        help="time limit for the whole sweep in seconds (default: 60)",
    )
    late = "give up when ranks do not meet or a call does not finish within S seconds (default: 60)"
    what.add_argument("--timeout", type=seconds, default=60.0, metavar="S", help=late)
    what.add_argument("--python", metavar="PATH", help="Python with torch (default: that of the active environment)")
    torchrun_arguments(parser)
    shown = parser.add_argument_group("what is shown and kept")
    default = RUNS / LINKS_JSON
    shown.add_argument(
        "-o", "--output", type=Path, default=default, metavar="FILE", help=f"output file (default: {default})"
    )
    shown.add_argument("--format", choices=("text", "json"), default="text", help="what to print (default: text)")
    shown.add_argument("-q", "--quiet", action="store_true", help="do not print progress")


def run(args: argparse.Namespace) -> int:
    """Measure, keep it, print it; 130 where it was interrupted, 2 where it failed, also with a part of the result."""
    from dptune.capture import links
    from dptune.measure.communication.links import fitted
    from dptune.runfile import json_files

    sizes = args.sizes or [size for size in SIZES if size <= (args.max_size or SIZES[-1])] or [args.max_size]
    asked = links.SweepRequest(args.kinds or links.KINDS, sizes, args.backend, args.repeats, args.seconds, args.timeout)
    _check(args.output)
    asked, started = _launch(args, asked)
    record = links.sweep(started, asked, (lambda *_: None) if args.quiet else _show)
    if record is None:
        if started.job is None and not args.quiet:
            print("dptune: the node of rank 0 has the result", file=sys.stderr)
        return 0
    record = fitted(record)
    sys.stdout.write(json_files.text(record) if args.format == "json" else _text(record, args.output))
    json_files.write(args.output, record)
    print(f"dptune: wrote {args.output}", file=sys.stderr)
    if record.note:
        print(f"dptune: {record.ended}: {record.note}", file=sys.stderr)
    return {"interrupted": 130, "failed": 2, "timed-out": 2}.get(record.ended, 0)


def _launch(args: argparse.Namespace, asked: SweepRequest) -> tuple[SweepRequest, Launch]:
    """What is measured, and by whom the ranks are started: torchrun, or whoever started dptune."""
    from dptune.capture import interpreter, job, launch

    torchrun = torchrun_of(args)
    around = None if torchrun.asked else job.surrounding()
    if not torchrun.asked and around is None:
        torchrun = replace(torchrun, nproc_per_node=_recorded_ranks())
        if not (args.kinds or args.sizes or args.max_size):
            asked = _as_recorded(asked)
    world = around.world_size if around else torchrun.world_size
    if world == 1:
        raise UsageError("one rank has no links", "use dptune links --nproc-per-node N, or start it once per rank")
    chosen = interpreter.choose(args.python)
    if around is not None:
        return asked, launch.as_rank(asked.script, chosen, around)
    return asked, launch.under_torchrun(asked.script, chosen, torchrun)


def _as_recorded(asked: SweepRequest) -> SweepRequest:
    """All-reduces alone, up to all gradients in one, where the latest recording has none other of a wrapper."""
    from dptune.commands.shared.reading import record_of
    from dptune.present.amounts import data
    from dptune.runfile import json_files, paths
    from dptune.runfile.facts import Facts

    try:
        facts = json_files.read(paths.facts(record_of([]).parent, 0), Facts)
    except (OSError, ValueError, RunError):
        return asked
    if len(facts.ddp) != 1 or not facts.ddp[0].gradient_bytes or facts.fsdp or facts.engine:
        return asked
    most = max(facts.ddp[0].gradient_bytes, LEAST_MOST)
    sizes = [size for size in asked.sizes if size < 4 * most]
    words = f"all-reduces of up to {data(sizes[-1])}: the run has no larger ones"
    print(f"dptune: {words} (--kinds and --max-size for others)", file=sys.stderr)
    return replace(asked, kinds=("all_reduce",), sizes=sizes)


def _recorded_ranks() -> int:
    """As many ranks as the latest recording has, of one host; 1 where there is none. Raises UsageError of several."""
    from dptune.commands.shared.reading import record_of
    from dptune.runfile import json_files
    from dptune.runfile.record import RunRecord

    try:
        path = record_of([])
        run, record = path.parent, json_files.read(path, RunRecord)
    except (OSError, ValueError, RunError):
        return 1
    ranks, hosts = record.world_size or 1, len(set(record.hosts))
    if ranks > 1 and hosts != 1:
        raise UsageError(
            f"{run} has {ranks} ranks on {hosts or 'unknown'} hosts: give the number of ranks on this host",
            "on each host, with its own i: dptune links --nnodes 2 --node-rank i --master-addr HOST --nproc-per-node N",
        )
    if ranks > 1:
        print(f"dptune: {ranks} ranks, as {visible(str(run))} has (--nproc-per-node N for others)", file=sys.stderr)
    return ranks


def _check(output: Path) -> None:
    """Fail before the minutes of measuring, not after."""
    if output.is_dir():
        raise UsageError(f"cannot write to {output}: it is a folder", "name a file in it")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {output.parent}: {error.strerror}", "choose another path with -o"
        ) from None
    try:
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise UsageError(
            f"cannot write into {output.parent}: {error.strerror}", "choose another path with -o"
        ) from None


def _show(kind: str, size: SizeTimes) -> None:
    from dptune.present.amounts import data, number

    print(f"dptune: {kind}, {data(size.message_bytes)}: {number(size.median_s * 1e3)} ms", file=sys.stderr)


def _text(record: LinkRecord, output: Path) -> str:
    from dptune.measure.communication.links import Sweep, from_sweep
    from dptune.present import terminal
    from dptune.present.ink import paint
    from dptune.present.sections import links

    lines = links.swept(from_sweep(Sweep(record, str(output))), record, terminal.width(sys.stdout))
    return paint(lines, terminal.colours(sys.stdout))


def _kinds(text: str) -> list[str]:
    from dptune.capture.links import KINDS

    words = [word.replace("-", "_") for word in text.split(",")]
    unknown = [word for word in words if word not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown kind '{unknown[0]:.20}': {', '.join(KINDS)}")
    return list(dict.fromkeys(words))


def _sizes(text: str) -> list[int]:
    return sorted({_size(word) for word in text.split(",")})


def _size(text: str) -> int:
    """Bytes, from 65536 or 64k, 1m, 1g."""
    number = text.lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    digits = number.removesuffix(unit)
    if not digits.isdecimal() or len(digits) > 12 or not 4 <= int(digits) * _UNITS[unit] <= _LARGEST:
        raise argparse.ArgumentTypeError(f"'{text:.20}' is not a size from 4 bytes to 64g: like 65536, 64k or 1m")
    return int(digits) * _UNITS[unit]
