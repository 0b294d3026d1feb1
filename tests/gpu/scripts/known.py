"""Steps whose every part has a known length, for `dptune profile --continue`: prints what the parts took as JSON.

    python known.py --case parts     a kernel of known cycles, copies each way, a host that sleeps: one after another
    python known.py --case queue     more launches than the queue holds, of kernels that outlast them: never idle

On a GPU each part lies between two events of its own, which no profiler is needed for. The host waits for the device
around each part, so that none overlaps another.
"""

import argparse
import json
import time
from statistics import median

import torch
from turn import wait_for_turn


class Parts:
    """Times what runs inside `with parts(name)`, by events on a GPU and by the clock elsewhere."""

    def __init__(self, device):
        self.on_gpu, self.taken = device.type == "cuda", {}

    def __call__(self, name, call):
        if not self.on_gpu:
            begun = time.perf_counter()
            call()
            self.taken.setdefault(name, []).append((time.perf_counter() - begun) * 1e3)
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        self.taken.setdefault(name, []).append(begin.elapsed_time(end))


def spin(device, ms, cycles_per_ms):
    if device.type == "cuda":
        torch.cuda._sleep(int(ms * cycles_per_ms))
        return
    until = time.perf_counter() + ms / 1e3
    a = torch.ones(64, 64)
    while time.perf_counter() < until:
        torch.mm(a, a)


def cycles_per_ms(device, busy=lambda: None):
    """Of the spinning kernel, beside what `busy` launches: it counts the card's clock, which a load lowers."""
    if device.type != "cuda":
        return 0.0
    rates = []
    for _ in range(10):
        busy()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        torch.cuda.synchronize()
        rates.append(20_000_000 / begin.elapsed_time(end))
    return median(rates[5:])  # the card must have woken first


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--case", choices=("parts", "queue"), default="parts")
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--kernel-ms", type=float, default=20.0)
    options.add_argument("--sleep-ms", type=float, default=60.0)
    options.add_argument("--copy-mb", type=int, default=256)
    options.add_argument("--launches", type=int, default=2000)
    options.add_argument("--elements", type=int, default=2**24, help="of the vector that each launch adds to")
    args = options.parse_args()
    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    wait_for_turn()
    rate, parts = cycles_per_ms(device), Parts(device)
    weight = torch.zeros(1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    items = args.copy_mb * 2**18
    pageable, pinned = torch.ones(items), torch.ones(items)
    pinned = pinned.pin_memory() if on_gpu else pinned
    there, vector = torch.empty(items, device=device), torch.zeros(args.elements, device=device)

    def launch_many():
        spin(device, args.kernel_ms, rate)
        for _ in range(args.launches):
            vector.add_(1.0)

    def parts_step():
        parts("kernel", lambda: spin(device, args.kernel_ms, rate))
        parts("sleep", lambda: time.sleep(args.sleep_ms / 1e3))
        if on_gpu:
            parts("HtoD pinned", lambda: there.copy_(pinned, non_blocking=True))
            parts("DtoH pinned", lambda: pinned.copy_(there, non_blocking=True))
            parts("HtoD pageable", lambda: there.copy_(pageable))
            parts("DtoH pageable", lambda: pageable.copy_(there))

    for _ in range(args.steps):
        if args.case == "parts":
            parts_step()
        else:
            parts("queue", launch_many)
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
    print(json.dumps({"parts_ms": {name: median(times[5:]) for name, times in parts.taken.items()}}))


if __name__ == "__main__":
    main()
