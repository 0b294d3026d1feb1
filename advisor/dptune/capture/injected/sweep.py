"""Times the collectives between ranks, from small messages to large ones. Each rank runs this as a script.

What is timed is a train of calls, one after the other: the ranks meet at a barrier, make one call that is not timed,
then an even number that are. The train's time over its calls is the time of one. The first call leaves the ranks as far
apart as every later one does, so that no rank's time holds waiting for another that came late to the train. A single
call after a barrier does hold it, since ranks leave a barrier up to a latency apart. (Even: where two ranks take turns
in being ahead, two calls bring them back.) Of the ranks' times the longest counts; over the trains the median. On a GPU
a train is timed by events of the device, on a CPU by the clock.

p2p is a ping-pong between the first rank and the last: half the round trip.

Of small all-reduces it is also timed how long each of many takes that are asked for at once, as the buckets of a
backward pass are: backends have several under way, and who is awake need not be woken.

Rank 0 writes a line of JSON for each kind and size as soon as it is measured. With `--ranks` one process forks all
ranks of this host, so that torch is imported once. torch and the standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

_ITEM_BYTES = 4  # float32
_TRAIN_S = 0.05  # a train is to last so long
_MOST_CALLS = 20
_LEAST_TRAINS = 3
_PROBE_CALLS = 2
_QUEUE, _QUEUED_BYTES = 32, 64 * 1024  # so many asked for at once, of so many bytes at most
_QUEUED_TRAINS, _QUEUED_SHARE = 5, 0.1  # of the time that is left, at most for one size
_LEAST_OF_A_SIZE = (1 + _PROBE_CALLS) * (1 + _LEAST_TRAINS)  # calls of the probe and of the least trains

Call = Callable[[], None]


class Ranks:
    """The group, and what every rank can agree on with the others."""

    def __init__(self, backend: str, timeout_s: float, store: Any = None) -> None:
        """Without a store the launcher's environment says where the ranks meet."""
        local = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
        gpu = torch.cuda.is_available() and backend in ("", "nccl")
        backend = backend or ("nccl" if gpu and dist.is_nccl_available() else "gloo")
        self.device = (
            torch.device("cuda", local % torch.cuda.device_count()) if backend == "nccl" else torch.device("cpu")
        )
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        torch.set_num_threads(1)
        place: dict[str, Any] = (
            {} if store is None else {"rank": local, "world_size": int(os.environ["WORLD_SIZE"]), "store": store}
        )
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s), **place)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def highest(self, *values: float) -> list[float]:
        """Of each value the highest that any rank has; also where the ranks meet."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        found: list[float] = tensor.tolist()
        return found

    def described(self) -> dict[str, Any]:
        """Hosts and devices of all ranks, and what connects them."""
        gpu = self.device.type == "cuda"
        host_and_device = (socket.gethostname(), torch.cuda.get_device_name(self.device) if gpu else "cpu")
        all_of_them: list[Any] = [None] * self.size
        dist.all_gather_object(all_of_them, host_and_device)
        return {
            "backend": str(dist.get_backend()),
            "world_size": self.size,
            "torch": str(torch.__version__),
            "hosts": [host for host, _ in all_of_them],
            "devices": [device for _, device in all_of_them],
        }

    def train(self, call: Call, calls: int) -> float:
        """Seconds that so many calls take, the longest over the ranks."""
        dist.barrier()
        call()
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
        else:
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            seconds = time.perf_counter() - begun
        return self.highest(seconds)[0]


def prepared(kind: str, message_bytes: int, ranks: Ranks) -> tuple[Call, int]:
    """One call of a kind, and its message: the larger of input and output of one rank, bytes."""
    per_rank = max(1, round(message_bytes / _ITEM_BYTES / ranks.size))
    whole = torch.zeros(per_rank * ranks.size, dtype=torch.float32, device=ranks.device)
    part = torch.zeros(per_rank, dtype=torch.float32, device=ranks.device)
    last = ranks.size - 1

    def ping_pong() -> None:
        if ranks.rank == 0:
            dist.send(whole, last)
            dist.recv(whole, last)
        elif ranks.rank == last:
            dist.recv(whole, 0)
            dist.send(whole, 0)

    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "p2p": ping_pong,
    }
    return calls[kind], whole.numel() * _ITEM_BYTES


def queued(message_bytes: int, ranks: Ranks) -> Call:
    """Many all-reduces of so many bytes, asked for at once."""
    items = max(1, message_bytes // _ITEM_BYTES)
    tensors = [torch.zeros(items, dtype=torch.float32, device=ranks.device) for _ in range(_QUEUE)]

    def together() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return together


def refused(kind: str, ranks: Ranks) -> str:
    """Why this backend has no such collective; "" where it has."""
    why = ""
    try:
        prepared(kind, 0, ranks)[0]()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        why = str(error).splitlines()[0]
    (failed,) = ranks.highest(float(bool(why)))
    return why or ("another rank could not create it" if failed else "")


def measured(asked: argparse.Namespace, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """A record for each kind and size, and for what is left out; smallest sizes first, within the time there is."""
    begun = time.monotonic()
    if asked.until:  # the soonest that any rank's clock says
        asked.seconds = min(asked.seconds, -ranks.highest(time.time() - asked.until)[0])
    kinds = []
    for kind in asked.kinds:
        why = refused(kind, ranks)
        if why:
            yield {"kind": kind, "left_out": f"{dist.get_backend()} cannot: {why}"}
        else:
            kinds.append(kind)
    before: dict[str, tuple[int, float]] = {}
    for at, asked_bytes in enumerate(asked.sizes):
        for kind in list(kinds):
            left_s = asked.seconds - ranks.highest(time.monotonic() - begun)[0]
            messages = 2 if kind == "p2p" else 1
            if kind in before:
                smaller, once_s = before[kind]
                if once_s * messages * _LEAST_OF_A_SIZE * max(1.0, asked_bytes / smaller) > left_s:
                    yield {
                        "kind": kind,
                        "left_out": f"sizes from {_data(asked_bytes)}: the time limit of {asked.seconds:.3g} s was "
                        f"reached",
                    }
                    kinds.remove(kind)
                    continue
            rows_left = 1 if at == len(asked.sizes) - 1 else 2  # half of the time is for larger messages
            until = time.monotonic() + left_s / rows_left / len(kinds)
            call, message_bytes = prepared(kind, asked_bytes, ranks)
            once_s = ranks.train(call, _PROBE_CALLS) / _PROBE_CALLS
            calls = max(2, min(_MOST_CALLS, 2 * round(_TRAIN_S / max(once_s, 1e-9) / 2)))
            trains: list[float] = []
            while len(trains) < asked.repeats:
                trains.append(ranks.train(call, calls) / calls / messages)
                if len(trains) >= _LEAST_TRAINS and ranks.highest(time.monotonic() - until)[0] > 0:
                    break
            before[kind] = message_bytes, sorted(trains)[len(trains) // 2]
            yield {
                "kind": kind,
                "ranks": [0, ranks.size - 1] if kind == "p2p" else list(range(ranks.size)),
                "message_bytes": message_bytes,
                "seconds": trains,
                "calls": calls * messages * len(trains),
            }
            longest_s = 2 * _QUEUED_TRAINS * _QUEUE * once_s  # of each train the first call is not timed
            if kind == "all_reduce" and message_bytes <= _QUEUED_BYTES and longest_s < _QUEUED_SHARE * left_s:
                together = queued(message_bytes, ranks)
                yield {
                    "kind": kind,
                    "message_bytes": message_bytes,
                    "queued_seconds": [ranks.train(together, 1) / _QUEUE for _ in range(_QUEUED_TRAINS)],
                    "calls": _QUEUE * _QUEUED_TRAINS,
                }


def _data(size: int) -> str:
    """Bytes in the largest unit of 1024 that leaves a number of at least one."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.{2 if value < 9.995 else 1}f} {units[0]}"


def forked(ranks: int) -> int:
    """Make the other ranks of this host, and say which one this process is. CUDA must not have been used yet."""
    os.environ["WORLD_SIZE"] = str(ranks)
    local = next((rank for rank in range(1, ranks) if os.fork() == 0), 0)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(local)
    return local


def main() -> int:
    """Measure, as rank 0 writing what was found; 0 where everything that there was time for was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", type=lambda text: text.split(","))
    parser.add_argument("--sizes", type=lambda text: sorted(map(int, text.split(","))))
    parser.add_argument("--backend", default="")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--samples")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--until", type=float, default=0.0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # the names that older versions know as well
    local = forked(asked.ranks) if asked.ranks else 0
    try:
        met_at = f"{asked.samples}.store"
        store = dist.FileStore(met_at, asked.ranks) if asked.ranks else None  # type: ignore[attr-defined]
        ranks = Ranks(asked.backend, asked.timeout, store)
        with open(asked.samples if ranks.rank == 0 else os.devnull, "a", encoding="utf-8") as file:

            def write(record: dict[str, Any]) -> None:
                file.write(json.dumps(record) + "\n")
                file.flush()

            write(ranks.described())
            for record in measured(asked, ranks):
                write(record)
        dist.barrier()
        dist.destroy_process_group()
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        print(
            f"dptune: rank {os.environ.get('RANK', '?')}: {type(error).__name__}: {error}", file=sys.stderr, flush=True
        )
        os._exit(1)  # the others may never answer: whatever waits for them at the end of Python would hang
    if local:
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
