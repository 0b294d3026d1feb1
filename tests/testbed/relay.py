"""A wire between two network namespaces with a rate and a delay. Run as a script, as root, by `network.shaped`.

usage: relay.py BITS_PER_S DELAY_S NAMESPACE DEVICE NAMESPACE DEVICE

Each namespace has one TAP device, whose frames this process carries to the other: a frame waits until those before it
have left at the rate, then for the delay. The devices are gone with this process; when stdin closes, which it does when
whoever started it dies, the namespaces are removed as well.
"""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LARGEST_FRAME = 1 << 16


def tap(namespace: str, device: str) -> int:
    """A TAP device in a namespace, and the descriptor that its frames come from and go to."""
    own = f"{device}p{os.getpid()}"[:15]  # until it is moved, its name is one among all devices of the machine
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", own.encode(), IFF_TAP | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", own, "netns", namespace, "name", device], check=True)
    return descriptor


class Direction:
    """Frames on their way from one descriptor to the other."""

    def __init__(self, source: int, target: int, bytes_per_s: float, delay_s: float) -> None:
        self.source, self._target, self._bytes_per_s, self._delay_s = source, target, bytes_per_s, delay_s
        self._free_at = 0.0
        self._queue: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float:
        """When the next frame arrives."""
        return self._queue[0][0] if self._queue else float("inf")

    def take(self) -> None:
        """Every frame that is there."""
        while True:
            try:
                frame = os.read(self.source, LARGEST_FRAME)
            except BlockingIOError:
                return
            except OSError:  # the device is not up yet
                return
            self._free_at = max(self._free_at, time.monotonic()) + len(frame) / self._bytes_per_s
            self._queue.append((self._free_at + self._delay_s, frame))

    def deliver(self) -> None:
        """Every frame whose time has come."""
        while self._queue and self._queue[0][0] <= time.monotonic():
            try:
                os.write(self._target, self._queue.popleft()[1])
            except OSError:  # nobody listens, or its queue is full: lost, as on any wire
                continue


def carry(one: int, other: int, bytes_per_s: float, delay_s: float) -> None:
    """Until stdin closes."""
    ways = [Direction(one, other, bytes_per_s, delay_s), Direction(other, one, bytes_per_s, delay_s)]
    while True:
        until = min(way.due for way in ways)
        wait_s = max(0.0, min(until - time.monotonic(), 1.0))
        ready, _, _ = select.select([one, other, sys.stdin], [], [], wait_s)
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 1):
            return
        for way in ways:
            if way.source in ready:
                way.take()
            way.deliver()


def main() -> None:
    rate, delay_s, *places = sys.argv[1:]
    namespaces = places[::2]
    try:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))  # late frames would be latency
        ends = [tap(namespace, device) for namespace, device in zip(namespaces, places[1::2], strict=True)]
        print("ready", flush=True)
        carry(ends[0], ends[1], float(rate) / 8, float(delay_s))
    finally:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
