"""Clocks, power, throttling and PCIe links of this host's NVIDIA cards while a run is recorded, read through NVML.

A thread reads them: a query may block in the driver for seconds, and the launcher has signals to handle meanwhile.

Source: NVIDIA Management Library, "Device Queries"; the clock event reasons are bits of `nvmlClocksEventReasons`. Only
those that lower a busy card's clock count here: an idle card, or clocks that somebody chose, are no throttling.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from statistics import median_low
from typing import Any

from dptune.runfile.record import CardReadings, CardRecord

WINDOWS = ("untraced", "light", "detailed", "noise")
_NONE = "GPU clocks and throttling were not recorded"
NO_LIBRARY = f"{_NONE}: nvidia-ml-py is not installed (pip install 'dptune[gpu]')"
NO_MATCH = f"{_NONE}: NVML lists none of the GPUs used (MIG partitions have separate UUIDs)"
BLOCKED = "GPU clocks and throttling are incomplete: NVML stopped responding"

_EVERY_S = 0.2
_MOST_DUTY = 0.2  # of the time that goes into queries: many cards, or a slow driver, are read less often
_ANSWERS_WITHIN_S = 2.0  # at the end; a query that blocks for longer is left behind with its thread
_THROTTLING = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_SM, _MEMORY, _DIE = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU


class Cards:
    """The cards that NVML lists, read in the background until `finish`.

    A query that a card does not answer is left out, with the reason in the card's `unread`.
    """

    def __init__(self, host: str) -> None:
        self._host, self._phase, self._unread = host, "", ""
        self._cards: list[_Card] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="dptune-cards", daemon=True)
        self._thread.start()

    def look(self, phase: str) -> None:
        """Which window the ranks are in; between windows nothing is read."""
        self._phase = phase

    def finish(self, used: Collection[str], within_s: float = _ANSWERS_WITHIN_S) -> tuple[list[CardRecord], str]:
        """The cards with one of these UUIDs, as torch writes them (without `GPU-`), or all where none is named; and why
        there are none, or not all of their readings."""
        self._over.set()
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._unread = BLOCKED
        chosen = [card for card in self._cards if not used or card.record.uuid.removeprefix("GPU-") in used]
        if self._cards and not chosen:
            self._unread = NO_MATCH
        return [card.summary() for card in chosen], self._unread

    def _read(self) -> None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            self._unread = NO_LIBRARY if shutil.which("nvidia-smi") else ""
            return
        try:
            nvml.nvmlInit()
            for number in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                self._cards.append(_Card(nvml, handle, CardRecord(number, host=self._host)))
            self._sample()
        except Exception as error:
            self._unread = f"{_NONE}: NVML failed ({error})" if shutil.which("nvidia-smi") else ""
        with contextlib.suppress(Exception):  # the driver is gone: nothing is left to let go of
            nvml.nvmlShutdown()

    def _sample(self) -> None:
        pause_s = _EVERY_S
        while not self._over.wait(pause_s):
            begun, phase = time.monotonic(), self._phase
            if phase in WINDOWS:
                for card in self._cards:
                    card.sample(phase)
            pause_s = max(_EVERY_S, (time.monotonic() - begun) * (1 / _MOST_DUTY - 1))


class _Card:
    """One card: what stays, read once, and what moves, sampled by window."""

    def __init__(self, nvml: Any, handle: Any, record: CardRecord) -> None:
        self.record = record
        self._samples: dict[str, list[dict[str, int]]] = defaultdict(list)
        self._moving: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY),
            "power_mw": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, _DIE),
            "reasons": lambda: _reasons(nvml, handle),
            "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        }
        for name, read in _fixed(nvml, handle).items():
            value = self._read(name, read)
            if value is not None:
                setattr(record, name, value)

    def sample(self, window: str) -> None:
        """Read what moves."""
        read = {name: self._read(name, query) for name, query in self._moving.items()}
        self._samples[window].append({name: int(value) for name, value in read.items() if value is not None})

    def summary(self) -> CardRecord:
        """The record with what was sampled until now; the thread may be sampling still."""
        readings = [_readings(window, samples.copy()) for window, samples in self._samples.copy().items()]
        return replace(self.record, readings=readings, unread=self.record.unread.copy())

    def _read(self, name: str, query: Callable[[], Any]) -> Any:
        try:
            return query()
        except Exception as error:
            self.record.unread[name] = str(error) or type(error).__name__
            return None


def _fixed(nvml: Any, handle: Any) -> Mapping[str, Callable[[], Any]]:
    return {
        "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(handle)),
        "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
        "driver": lambda: _text(nvml.nvmlSystemGetDriverVersion()),
        "most_sm_clock_mhz": lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, _SM)),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "most_pcie_generation": lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "most_pcie_width": lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
    }


def _reasons(nvml: Any, handle: Any) -> int:
    """The bits by which the clock is held back; the call was renamed with driver 535."""
    query = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    try:
        if query is not None:
            return int(query(handle))
    except Exception:  # an older driver under a newer library
        pass
    return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _readings(window: str, samples: list[dict[str, int]]) -> CardReadings:
    def of(name: str) -> list[int]:
        return [sample[name] for sample in samples if name in sample]

    clocks, bits = of("sm_clock_mhz"), of("reasons")
    return CardReadings(
        window,
        samples=len(samples),
        sm_clock_mhz=median_low(clocks) if clocks else None,
        least_sm_clock_mhz=min(clocks, default=None),
        memory_clock_mhz=median_low(of("memory_clock_mhz")) if of("memory_clock_mhz") else None,
        most_power_w=max(of("power_mw")) / 1e3 if of("power_mw") else None,
        most_temperature_c=max(of("temperature_c"), default=None),
        pcie_generation=max(of("pcie_generation"), default=None),
        pcie_width=max(of("pcie_width"), default=None),
        throttled={reason: count for bit, reason in _THROTTLING.items() if (count := sum(bool(b & bit) for b in bits))},
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
