"""What reading many ranks by their records costs: bytes and time of a record, of comparing records, of a cluster.

    python tests/benchmarks/cluster.py record          one trace of 100 MB: its record beside the whole and the floor
    python tests/benchmarks/cluster.py compare 1000    so many copies of that record, compared: time, peak memory
    python tests/benchmarks/cluster.py ranks 1024      so many copies of a small trace, by one process and by a cluster
    python tests/benchmarks/cluster.py ranks 24 --megabytes 20      the same of larger ones
    python tests/benchmarks/cluster.py parts 1024 --megabytes 20    by a cluster only, made and deleted 64 at a time
    python tests/benchmarks/cluster.py planted 1024 --megabytes 20  by a cluster: what differs between ranks is known
    python tests/benchmarks/cluster.py --table         the latest results

Times are CPU seconds (user and system, of a process and of those it started and waited for), so that they hold on a
machine that does other things, too. The copies have ranks and clocks of their own. Results are appended to
results/cluster.json. `parts` goes on where it stopped: the records of each part are kept in the folder of temporary
files until the last is read. The traces of `planted` are those of tests/measure/many_ranks.py, made as large as asked
by operators that launch nothing: two hosts whose GPUs take 1.2 times as long, three ranks that idle for 2 ms before
each step, one group whose all-reduces take 2.5 times as long.
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
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import msgspec
from isal import igzip
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
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.measure.many_ranks import PER_HOST, Planted, write_traces  # noqa: E402

RESULTS = HERE / "results" / "cluster.json"
DATA = Path(tempfile.gettempdir()) / "dptune-benchmark-traces"
SMALL = ROOT / ".." / "shared" / "real_traces" / "torchrec_straggler_4xv100"
MEGABYTES = 100
COMPARED = (1_000, 2_500, 5_000, 10_000, 16_384)  # ranks in the table
ROUNDS = 5
PART = 64  # ranks on disk at a time
LIMITS = Limits(wait_s=300, rank_timeout_s=600, attempts=3, workers=2)


def cpu_s() -> float:
    """CPU seconds of this process and of those that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """The peak of this process's memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def large(megabytes: int = MEGABYTES) -> Path:
    """One rank of so much text."""
    path = DATA / f"rank0-{megabytes}mb.json.gz"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        write_trace(path, megabytes, "fractional")
    return path


class Nothing(msgspec.Struct):
    """Every field is skipped."""


def record() -> dict[str, Any]:
    """CPU seconds of one rank: unpacking and checking its JSON, loading it, its record, all figures.

    Medians of rounds, each in this order, after one on a small trace, which imports what they take.
    """
    measure(load([large(20)], cached=False))
    rounds = [record_once() for _ in range(ROUNDS)]
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def record_once() -> dict[str, Any]:
    """One round; and the bytes that travel."""
    path = large()
    begin = cpu_s()
    with igzip.open(path) as file:
        msgspec.json.decode(file.read(), type=Nothing)
    checked = cpu_s()
    run = load([path], cached=False)
    loaded = cpu_s()
    measure(run)
    measured = cpu_s()
    run = load([path], cached=False)
    loaded_again = cpu_s()
    digest = recording(None, None)(run.ranks[0].light)
    recorded = cpu_s()
    kept = len(pickle.dumps((run.ranks[0].light.head(), digest)))
    return {
        "floor_s": checked - begin,
        "load_s": loaded - checked,
        "record_s": recorded - loaded_again,
        "measure_s": measured - loaded,
        "record_bytes": kept,
        "events": run.ranks[0].light.events,
        "calls": sum(len(device.record.calls) for device in cast(RankView, digest).devices if device.record),
    }


def compare(ranks: int) -> dict[str, Any]:
    """CPU seconds and memory of comparing so many ranks by copies of one record."""
    trace = load([large()]).ranks[0].light
    digest = cast(RankView, recording(0, None, None)(trace))
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


def copies(folder: Path, texts: list[str], numbers: range) -> None:
    """Copies of traces, one for each rank of these numbers."""
    for rank in numbers:
        text = re.sub(r'"rank": ?\d+', f'"rank": {rank}', texts[rank % len(texts)], count=1)
        (folder / f"rank{rank:05}.json.gz").write_bytes(igzip.compress(text.encode(), 1))


def started(executor: Executor, path: Path) -> float:
    """CPU seconds of the workers, once each has imported what reading takes."""
    for each in [executor.submit(load, [path], digest=recording, cached=False) for _ in range(8)]:
        each.result()
    return working_s()


def working_s() -> float:
    """CPU seconds of the processes that this one has started and that still run."""
    import psutil  # comes with dask.distributed

    return sum(sum(each.cpu_times()[:2]) for each in psutil.Process().children(recursive=True))


def ranks(count: int, megabytes: int) -> dict[str, Any]:
    """CPU seconds of reading copies of a trace, by one process and by two workers of a local cluster."""
    folder = Path(tempfile.mkdtemp(prefix="dptune-ranks-"))
    try:
        sources = [large(megabytes)] if megabytes else sorted(SMALL.iterdir())
        copies(folder, [gzip.decompress(path.read_bytes()).decode() for path in sources], range(count))
        first = next(folder.iterdir())
        load([first], digest=recording, cached=False)  # imports what reading takes
        begin, wall = cpu_s(), time.perf_counter()
        by_one = load([folder], digest=recording, cached=False)
        one_s, one_wall_s = cpu_s() - begin, time.perf_counter() - wall
        begin = cpu_s()
        with connected("local", LIMITS, print) as executor:
            before_s = started(executor, first)
            own_s, wall = cpu_s(), time.perf_counter()
            by_cluster = load([folder], digest=recording, executor=executor, cached=False)
            cluster_wall_s = time.perf_counter() - wall
            workers_s, client_s = working_s() - before_s, cpu_s() - own_s
        cluster_s = cpu_s() - begin
        begin = cpu_s()
        measured = measure(with_events(by_cluster, differing(by_cluster)))
        same = measured.account == measure(with_events(by_one, differing(by_one))).account
        return {
            "ranks": count,
            "one_process_s": one_s,
            "one_process_wall_s": one_wall_s,
            "megabytes": megabytes,
            "workers_s": workers_s,
            "client_s": client_s,
            "cluster_and_its_start_s": cluster_s,
            "cluster_wall_s": cluster_wall_s,
            "per_core": (workers_s + client_s) / one_s,
            "compare_s": (cpu_s() - begin) / 2,
            "client_peak_mb": peak_mb(),
            "same": same,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parts(count: int, megabytes: int) -> dict[str, Any]:
    """CPU seconds of reading so many copies by two workers, a part of them on disk at a time, and of comparing them."""
    kept = DATA / f"parts-{count}-{megabytes}mb"
    kept.mkdir(parents=True, exist_ok=True)
    texts = [gzip.decompress(large(megabytes).read_bytes()).decode()]
    missing = [at for at in range(0, count, PART) if not (kept / f"{at:05}.pickle").exists()]
    folder = Path(tempfile.mkdtemp(prefix="dptune-ranks-"))
    try:
        with connected("local", LIMITS, print) as executor:
            for number, at in enumerate(missing):
                copies(folder, texts, range(at, min(at + PART, count)))
                before_s = working_s() if number else started(executor, next(folder.iterdir()))
                own_s, wall = cpu_s(), time.perf_counter()
                run = load([folder], digest=recording, executor=executor, cached=False)
                spent = (working_s() - before_s, cpu_s() - own_s, time.perf_counter() - wall)
                (kept / "writing").write_bytes(pickle.dumps((spent, run.digested)))
                (kept / "writing").rename(kept / f"{at:05}.pickle")
                for path in folder.iterdir():
                    path.unlink()
                print(f"{at + PART:,} of {count:,}: {spent}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    del texts
    read_peak_mb, by_part, digested = peak_mb(), [], []
    for path in sorted(kept.glob("*.pickle")):
        of_part, found = pickle.loads(path.read_bytes())
        by_part.append(of_part)
        digested += found
    workers_s, client_s, wall_s = (sum(column) for column in zip(*by_part, strict=True))
    begin = cpu_s()
    measured = measure(Run([], digested=digested))
    shutil.rmtree(kept)
    return {
        "ranks": len(digested),
        "megabytes": megabytes,
        "workers_s": workers_s,
        "client_s": client_s,
        "cluster_wall_s": wall_s,
        "measure_s": cpu_s() - begin,
        "read_peak_mb": read_peak_mb,
        "client_peak_mb": peak_mb(),
        "accounted": measured.account is not None,
    }


SLOW_HOSTS, SLOW_PLACE = (31, 202), 2
STRAGGLERS = (77, 500, 901)


def planted(count: int, megabytes: int) -> dict[str, Any]:
    """What is named of ranks that differ as planted, read by two workers, a part of them on disk at their full size."""
    slow = [rank for host in SLOW_HOSTS for rank in range(host * PER_HOST, (host + 1) * PER_HOST)]
    faults = Planted(
        gemm_times=dict.fromkeys(slow, 1.2),
        delays=lambda rank, _: 2_000.0 if rank in STRAGGLERS else 0.0,
        data_times={SLOW_PLACE: 2.5},
    )
    source, folder = (Path(tempfile.mkdtemp(prefix=f"dptune-{name}-")) for name in ("small", "ranks"))
    digested: list[Any] = []
    workers_s = client_s = wall_s = 0.0
    try:
        write_traces(source, count // PER_HOST, faults, "node{:03d}".format)
        more = operators(megabytes * 1_000_000)
        with connected("local", LIMITS, print) as executor:
            for at in range(0, count, PART):
                for rank in range(at, min(at + PART, count)):
                    text = (source / f"{rank}.json").read_text().replace('"traceEvents": [', more, 1)
                    (folder / f"rank{rank:05}.json.gz").write_bytes(igzip.compress(text.encode(), 1))
                before_s = started(executor, next(folder.iterdir())) if not at else working_s()
                own_s, wall = cpu_s(), time.perf_counter()
                digested += load([folder], digest=recording, executor=executor, cached=False).digested
                workers_s += working_s() - before_s
                client_s += cpu_s() - own_s
                wall_s += time.perf_counter() - wall
                for path in folder.iterdir():
                    path.unlink()
                print(f"{at + PART:,} of {count:,}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(source, ignore_errors=True)
    begin = cpu_s()
    outliers = measure(Run([], digested=digested)).outliers
    named = sorted((place.kind, place.place) for place in outliers.late)
    expected = sorted(
        [("host", f"node{host:03}") for host in SLOW_HOSTS] + [("rank", str(rank)) for rank in STRAGGLERS]
    )
    return {
        "ranks": len(digested),
        "megabytes": megabytes,
        "workers_s": workers_s,
        "client_s": client_s,
        "cluster_wall_s": wall_s,
        "measure_s": cpu_s() - begin,
        "client_peak_mb": peak_mb(),
        "late": named,
        "late_as_planted": named == expected,
        "slow_devices_as_planted": sorted(device.rank for device in outliers.slow_devices) == slow,
        "slow_links": [link.ranks[:3] for link in outliers.slow_links],
        "slow_links_as_planted": [link.ranks for link in outliers.slow_links]
        == [list(range(SLOW_PLACE, count, PER_HOST))],
        "unsteady_hosts": [host.host for host in outliers.unsteady_hosts],
    }


def operators(size: int) -> str:
    """The start of a list of events with so many bytes of operators, none of which launches anything."""
    events, length, number = [], 0, 0
    while length < size:
        number += 1
        name = ("aten::linear", "aten::addmm", "aten::add_", "aten::layer_norm")[number % 4]
        args = {"External id": number, "Record function id": 0, "Input Dims": [[64, 1024], [1024, 1024]]}
        about = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 4137, "args": args}
        events.append(json.dumps({**about, "ts": 1000 + number * 0.6, "dur": 0.5}))
        length += len(events[-1]) + 2
    return '"traceEvents": [' + "".join(f"{event}, " for event in events)


def table(results: list[dict[str, Any]]) -> str:
    """The latest result of each kind as text."""
    latest = {(each["what"], each.get("ranks"), each.get("megabytes")): each for each in results}
    lines = ["compared by records of 100 MB traces, CPU s    chosen  measured   peak MB"]
    for (what, count, _), each in sorted(latest.items(), key=lambda item: item[0][1] or 0):
        if what == "compare" and count in COMPARED:
            lines.append(
                f"{count:>12,} ranks                          {each['differing_s']:9.1f} {each['measure_s']:9.1f}"
                f" {each['peak_mb']:9,.0f}"
            )
    lines += ["", "read, CPU s                 one process   workers   client   per core"]
    for (what, count, megabytes), each in latest.items():
        if what == "ranks" and "per_core" in each:
            lines.append(
                f"{count:>5,} ranks of {megabytes:>2} MB         {each['one_process_s']:9.1f} {each['workers_s']:9.1f}"
                f" {each['client_s']:8.1f} {each['per_core']:10.2f}"
            )
        elif what in ("parts", "planted"):
            lines.append(
                f"{count:>5,} ranks of {megabytes:>2} MB                 - {each['workers_s']:9.1f}"
                f" {each['client_s']:8.1f}          -"
            )
    for (what, count, megabytes), each in latest.items():
        if what == "planted":
            right = [each[f"{name}_as_planted"] for name in ("late", "slow_devices", "slow_links")]
            lines += [
                "",
                f"{count:,} ranks of {megabytes} MB: late places {_named(right[0])}, slow GPUs {_named(right[1])}, "
                f"slow links {_named(right[2])}; unsteady hosts named: {len(each['unsteady_hosts'])}",
                f"compared in {each['measure_s']:.1f} CPU s; the client took {each['client_peak_mb']:,.0f} MB at most",
            ]
    record = latest["record", None, None]
    lines += [
        "",
        "one trace of 100 MB, CPU s: floor, load, record, measure: "
        + ", ".join(f"{record[name]:.2f}" for name in ("floor_s", "load_s", "record_s", "measure_s")),
        f"load and measure: {(record['load_s'] + record['measure_s']) / record['floor_s']:.1f} times the floor",
    ]
    return "\n".join(lines)


def _named(as_planted: bool) -> str:
    return "as planted" if as_planted else "NOT as planted"


def main() -> None:
    """Run one part and keep its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("record", "compare", "ranks", "parts", "planted"), default="record")
    parser.add_argument("--table", action="store_true", help="print what there is")
    parser.add_argument("count", nargs="?", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=0, help="of the traces of ranks (default: small ones)")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(RESULTS.read_text())))
        return
    result = {"what": args.what}
    if args.what == "record":
        result |= record()
    else:
        of_ranks = {"ranks": ranks, "parts": parts, "planted": planted}.get(args.what)
        result |= of_ranks(args.count, args.megabytes) if of_ranks else compare(args.count)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*before, result], indent=1) + "\n")
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
