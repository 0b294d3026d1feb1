"""What reads the ranks: processes of this machine or workers of a cluster; and which ranks are read in full."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.capture import ranks
from dptune.commands.shared.cores import usable_cores
from dptune.commands.shared.ending import ending
from dptune.errors import UsageError
from dptune.present.visible import visible

if TYPE_CHECKING:
    from dptune.trace import Run
    from dptune.trace.run import Progress

ALL, AUTO = "all", "auto"
CLUSTER, DETAILED = "WHERE", "all|auto|RANKS"
CHOICES = {CLUSTER: ("local", "slurm", "tcp://"), DETAILED: (ALL, AUTO)}


@dataclass(frozen=True)
class Engine:
    """`executor` reads traces, or `jobs` processes do (None: one per core); `cached` as in `dptune.trace.load`.

    `detailed` are the ranks to read in full, or `all`, or `auto`: those that differ. Of the others a record is kept.
    """

    jobs: int | None = None
    cached: bool = True
    executor: Executor | None = None
    detailed: str | Collection[int] = ALL

    def load(self, paths: Sequence[str | Path], progress: Progress | None) -> Run:
        """The run that the paths hold."""
        from dptune.trace import load

        jobs = self.jobs or usable_cores()
        if self.detailed == ALL:
            return load(paths, progress=progress, executor=self.executor, jobs=jobs, cached=self.cached)
        from dptune.measure.records.choosing import differing
        from dptune.measure.records.making import recording
        from dptune.trace.loading.gathering import with_events

        run = load(paths, progress=progress, executor=self.executor, jobs=jobs, cached=self.cached, digest=recording)
        chosen = differing(run) if isinstance(self.detailed, str) else self.detailed
        return with_events(run, chosen, progress=progress, executor=self.executor, jobs=jobs, cached=self.cached)


def cluster_options(parser: argparse.ArgumentParser) -> None:
    """Declare where ranks are read, and which of them in full."""
    group = parser.add_argument_group("many ranks")
    words = "read ranks on Dask workers: local, slurm, or the scheduler's address, e.g. tcp://HOST:8786"
    group.add_argument("--cluster", metavar=CLUSTER, help=words)
    words = (
        "ranks to read in full: all, auto (those that differ), or a list, e.g. 0,7,64-71; of the others, only steps "
        "and collectives are read (default: all; auto with --cluster)"
    )
    group.add_argument("--detail-ranks", type=_detailed, metavar=DETAILED, help=words)


@contextmanager
def engine_of(args: argparse.Namespace) -> Iterator[Engine]:
    """What a command line asks for. On leaving, the cluster that was started is ended."""
    detailed: str | Collection[int] = args.detail_ranks or (AUTO if args.cluster else ALL)
    if args.cluster is None:
        yield Engine(args.jobs, not args.no_cache, None, detailed)
        return
    from dptune import config
    from dptune.trace.loading.cluster import Limits, check, connected

    check(args.cluster)
    settings = config.load().cluster
    limits = Limits(
        wait_s=settings.wait_s,
        rank_timeout_s=settings.rank_timeout_s,
        attempts=settings.attempts,
        workers=args.jobs or settings.workers or usable_cores(),
        slurm=settings.slurm,
    )
    with ending(), connected(args.cluster, limits, _warn) as executor:
        yield Engine(args.jobs, not args.no_cache, executor, detailed)


def _warn(words: str) -> None:
    print(f"dptune: warning: {visible(words)}", file=sys.stderr)


def _detailed(text: str) -> str | tuple[int, ...]:
    if text in (ALL, AUTO):
        return text
    try:
        return ranks.parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message.removeprefix('--ranks: ')}; {error.hint}") from None
