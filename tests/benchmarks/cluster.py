"""What reading many ranks by their records costs: bytes and time of a record, of comparing records, of a cluster.

    python tests/benchmarks/cluster.py record          one trace of 100 MB: its record beside the whole of it
    python tests/benchmarks/cluster.py compare 1000    so many copies of that record, compared: time, peak memory
    python tests/benchmarks/cluster.py ranks 1024      so many copies of a small trace, by one process and by a cluster

Times are CPU seconds (user and system, of a process and of those it started and waited for), so that they hold on a
machine that does other things, too. The copies have ranks and clocks of their own. Results are appended to
results/cluster.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kineto_text import write_trace

from dptune.measure import measure
from dptune.measure.records.choosing import differing
from dptune.measure.records.making import recording
from dptune.measure.views import RankView
from dptune.trace import Run, load
from dptune.trace.loading.cluster import Limits, connected
from dptune.trace.loading.gathering import with_events
from dptune.trace.run import RankTrace

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "cluster.json"
DATA = Path(tempfile.gettempdir()) / "dptune-benchmark-traces"
SMALL = HERE.parents[1] / ".." / "shared" / "real_traces" / "torchrec_straggler_4xv100"
MEGABYTES = 100


def cpu_s() -> float:
    """CPU seconds of this process and of those that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """The peak of this process's memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large() -> Path:
    """One rank of 100 MB of text."""
    path = DATA / f"rank0-{MEGABYTES}mb.json.gz"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        write_trace(path, MEGABYTES, "fractional")
    return path


def record() -> dict[str, Any]:
    """CPU seconds of one rank: loading it, its record, all figures; and the bytes that travel."""
    path = large()
    begin = cpu_s()
    run = load([path])
    loaded = cpu_s()
    digest = recording(None, None)(run.ranks[0].light)
    recorded = cpu_s()
    measure(run)
    measured = cpu_s()
    kept = len(pickle.dumps((run.ranks[0].light.head(), digest)))
    return {
        "load_s": loaded - begin,
        "record_s": recorded - loaded,
        "measure_s": measured - recorded,
        "record_bytes": kept,
        "events": run.ranks[0].light.events,
        "calls": sum(len(device.record.calls) for device in cast(RankView, digest).devices if device.record),
    }


def compare(ranks: int) -> dict[str, Any]:
    """CPU seconds and memory of comparing so many ranks by copies of one record."""
    trace = load([large()]).ranks[0].light
    digest = cast(RankView, recording(None, None)(trace))
    kept = pickle.dumps((trace.head(), digest))
    del trace, digest
    before = peak_mb()
    moved = random.Random(0)
    digested = []
    for rank in range(ranks):
        head, rank_view = pickle.loads(kept)
        by_ns = moved.randrange(10_000_000)
        head = replace(head, base_ns=head.base_ns + by_ns, distributed=replace(head.distributed, rank=rank))
        rank_view = replace(rank_view, trace=replace(rank_view.trace, base_ns=rank_view.trace.base_ns + by_ns))
        digested.append(RankTrace(rank, head.path, head, digest=rank_view))
    held, begin = peak_mb(), cpu_s()
    chosen = differing(Run([], digested=digested))
    differed = cpu_s()
    run = with_events(Run([], digested=digested), chosen[:1])
    loaded = cpu_s()
    measure(run)
    return {
        "ranks": ranks,
        "records_mb": held - before,
        "peak_mb": peak_mb(),
        "differing_s": differed - begin,
        "measure_s": cpu_s() - loaded,
    }


def ranks(count: int) -> dict[str, Any]:
    """CPU seconds of reading copies of a small real trace, by one process and by two workers of a local cluster."""
    folder = Path(tempfile.mkdtemp(prefix="dptune-ranks-"))
    try:
        texts = [gzip.decompress(path.read_bytes()).decode() for path in sorted(SMALL.iterdir())]
        for rank in range(count):
            text = re.sub(r'"rank": ?\d+', f'"rank": {rank}', texts[rank % len(texts)], count=1)
            with gzip.open(folder / f"rank{rank:05}.json.gz", "wt", compresslevel=1) as file:
                file.write(text)
        begin, wall = cpu_s(), time.perf_counter()
        by_one = load([folder], digest=recording)
        one_s, one_wall_s = cpu_s() - begin, time.perf_counter() - wall
        begin = cpu_s()
        limits = Limits(wait_s=300, rank_timeout_s=600, attempts=3, workers=2)
        with connected("local", limits, print) as executor:
            wall = time.perf_counter()
            by_cluster = load([folder], digest=recording, executor=executor)
            cluster_wall_s = time.perf_counter() - wall
        cluster_s = cpu_s() - begin
        begin = cpu_s()
        measured = measure(with_events(by_cluster, differing(by_cluster)))
        same = measured.account == measure(with_events(by_one, differing(by_one))).account
        return {
            "ranks": count,
            "one_process_s": one_s,
            "one_process_wall_s": one_wall_s,
            "cluster_s": cluster_s,
            "cluster_wall_s": cluster_wall_s,
            "compare_s": (cpu_s() - begin) / 2,
            "client_peak_mb": peak_mb(),
            "same": same,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run one part and keep its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare", "ranks"))
    parser.add_argument("count", nargs="?", type=int, default=1000)
    args = parser.parse_args()
    found = {"record": lambda: record(), "compare": lambda: compare(args.count), "ranks": lambda: ranks(args.count)}
    result = {"what": args.what, **found[args.what]()}
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
