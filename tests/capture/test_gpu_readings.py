"""What NVML says of the cards, from a library that stands in for it: no card is at hand where tests run."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dptune.advise.gpu_readings import limits
from dptune.capture import gpu_readings
from dptune.capture.conclusion import _cards
from dptune.runfile import json_files
from dptune.runfile.facts import DeviceFacts, Facts
from dptune.runfile.record import CardReadings, CardRecord, RunRecord

from .conftest import PLAIN

# Two cards of an H100's figures. The second one answers no question on power, and its names are bytes, as older
# releases of the library gave them.
FAKE = """
    calls = 0
    def nvmlInit(): pass
    def nvmlShutdown(): pass
    def nvmlDeviceGetCount(): return 2
    def nvmlDeviceGetHandleByIndex(number): return number
    def nvmlSystemGetDriverVersion(): return "580.159.04"
    def nvmlDeviceGetUUID(card): return "GPU-aa" if card == 0 else b"GPU-bb"
    def nvmlDeviceGetName(card): return "NVIDIA H100 80GB HBM3" if card == 0 else b"NVIDIA H100 80GB HBM3"
    def nvmlDeviceGetMaxClockInfo(card, kind): return 1980
    def nvmlDeviceGetClockInfo(card, kind):
        global calls
        calls += 1
        return 2619 if kind == 2 else 1980 - 60 * (calls % 3)
    def nvmlDeviceGetEnforcedPowerLimit(card): return 700000
    def nvmlDeviceGetPowerUsage(card):
        if card: raise RuntimeError("Not Supported")
        return 412500
    def nvmlDeviceGetTemperature(card, sensor): return 61
    def nvmlDeviceGetCurrentClocksEventReasons(card): return 0x1 | (0x40 if card else 0)
    def nvmlDeviceGetCurrPcieLinkGeneration(card): return 5
    def nvmlDeviceGetMaxPcieLinkGeneration(card): return 5
    def nvmlDeviceGetCurrPcieLinkWidth(card): return 16 if card == 0 else 8
    def nvmlDeviceGetMaxPcieLinkWidth(card): return 16
"""


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType("pynvml")
    exec(textwrap.dedent(FAKE), module.__dict__)
    monkeypatch.setitem(gpu_readings.importlib.sys.modules, "pynvml", module)  # type: ignore[attr-defined]
    monkeypatch.setattr(gpu_readings.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(gpu_readings, "_EVERY_S", 0.001)
    return module


def read_through(*phases: str, used: set[str] | None = None) -> tuple[list[CardRecord], str]:
    """What is known of the cards after so many looks at these phases."""
    read = gpu_readings.Cards("node-1")
    for phase in phases:
        read.look(phase)
        wanted = len(read_samples(read, phase)) + 3
        deadline = time.monotonic() + 600
        while phase in gpu_readings.WINDOWS and len(read_samples(read, phase)) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
    return read.finish(used or set())


def read_samples(read: gpu_readings.Cards, phase: str) -> list[dict[str, int]]:
    return read._cards[-1]._samples.get(phase, []) if len(read._cards) > 1 else []


def test_each_window_has_its_own_readings(nvml: ModuleType) -> None:
    (first, second), unread = read_through("warm-up", "untraced", "set-up of light", "light", "done")
    assert unread == ""
    assert [one.window for one in first.readings] == ["untraced", "light"]
    assert all(one.samples >= 3 for one in first.readings)
    window = first.readings[0]
    assert window.sm_clock_mhz in (1860, 1920, 1980)
    assert (window.least_sm_clock_mhz, window.memory_clock_mhz) == (1860, 2619)
    assert (window.most_power_w, first.power_limit_w, window.most_temperature_c) == (412.5, 700.0, 61)
    assert (window.pcie_generation, window.pcie_width, first.most_pcie_width) == (5, 16, 16)
    assert window.throttled == {}  # an idle bit is no throttling
    assert second.readings[0].throttled == {"hardware thermal slowdown": second.readings[0].samples}
    assert (second.uuid, second.name, second.driver) == ("GPU-bb", "NVIDIA H100 80GB HBM3", "580.159.04")


def test_a_query_without_an_answer_is_named_and_the_others_stay(nvml: ModuleType) -> None:
    (card,), _ = read_through("untraced", used={"bb"})
    assert card.index == 1
    assert card.unread == {"power_mw": "Not Supported"}
    assert card.readings[0].most_power_w is None
    assert card.readings[0].most_temperature_c == 61


def test_a_partition_of_a_card_has_no_readings_and_the_reason(nvml: ModuleType) -> None:
    assert read_through("untraced", used={"MIG-cc"}) == ([], gpu_readings.NO_MATCH)


def test_the_older_name_of_the_reasons_is_asked_where_the_new_one_fails(nvml: ModuleType) -> None:
    def fails(card: int) -> int:
        raise RuntimeError("Function Not Found")

    nvml.__dict__["nvmlDeviceGetCurrentClocksEventReasons"] = fails
    nvml.__dict__["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda card: 0x4
    (card,), _ = read_through("light", used={"aa"})
    assert card.readings[0].throttled == {"software power cap": card.readings[0].samples}


def test_without_the_library_a_machine_with_cards_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(gpu_readings, "importlib", SimpleNamespace(import_module=absent))
    monkeypatch.setattr(gpu_readings.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert gpu_readings.Cards("node-1").finish(set()) == ([], gpu_readings.NO_LIBRARY)
    assert "pip install 'dptune[gpu]'" in next(limits(RunRecord(cards_unread=gpu_readings.NO_LIBRARY))).text
    monkeypatch.setattr(gpu_readings.shutil, "which", lambda name: None)
    assert gpu_readings.Cards("node-1").finish(set()) == ([], "")


def test_a_driver_that_does_not_start_is_a_sentence(nvml: ModuleType) -> None:
    def fails() -> None:
        raise RuntimeError("Driver/library version mismatch")

    nvml.__dict__["nvmlInit"] = fails
    expected = "GPU clocks and throttling were not recorded: NVML failed (Driver/library version mismatch)"
    assert gpu_readings.Cards("node-1").finish(set()) == ([], expected)


@pytest.mark.long
def test_a_recording_keeps_what_the_cards_showed_until_a_query_blocks(
    profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released = [], threading.Event()

    def blocks(card: int, sensor: int) -> int:
        asked.append(card)
        if len(asked) > 4:
            (tmp_path / "blocked").touch()
            released.wait(600)
        return 61

    library = ModuleType("pynvml")
    exec(textwrap.dedent(FAKE), library.__dict__)
    library.__dict__["nvmlDeviceGetTemperature"] = blocks
    monkeypatch.setitem(sys.modules, "pynvml", library)
    waits = "while step == 6 and not os.path.exists('blocked'): time.sleep(0.01)"
    script = PLAIN.replace("import sys", "import os, sys, time").replace("    model(", f"    {waits}\n        model(")
    windows = ("--warmup", "4", "--untraced", "6", "--light", "3", "--detailed", "0")
    run = profile(script, *windows)
    released.set()
    assert run.status == 0, run.err
    assert run.record.ending.how == "complete"
    assert [card.uuid for card in run.record.cards] == ["GPU-aa", "GPU-bb"]  # a CPU run names none: all are kept
    readings = {each.window: each for each in run.record.cards[0].readings}
    assert readings["untraced"].samples == 2
    assert readings["untraced"].most_power_w == 412.5
    assert run.record.cards_unread == gpu_readings.BLOCKED


def test_cards_of_one_host_are_there_once_when_each_rank_has_a_launcher() -> None:
    one, two = (RunRecord(cards=[CardRecord(0, host="a"), CardRecord(1, host="a")]) for _ in range(2))
    other = RunRecord(cards=[CardRecord(0, host="b")])
    assert [(card.host, card.index) for card in _cards([one, two, other])] == [("a", 0), ("a", 1), ("b", 0)]


def throttled(count: int, reason: str, samples: int = 20) -> RunRecord:
    readings = CardReadings("untraced", samples, sm_clock_mhz=1410, throttled={reason: count})
    return RunRecord(cards=[CardRecord(3, most_sm_clock_mhz=1980, most_pcie_width=16, readings=[readings])])


def test_throttling_is_reported_with_its_clock() -> None:
    found = list(limits(throttled(5, "software power cap")))
    assert [finding.code for finding in found] == ["throttled"]
    assert found[0].text == (
        "GPU 3 was throttled in the untraced steps (software power cap in 5 of 20 readings): "
        "median SM clock 1,410 MHz, maximum 1,980 MHz"
    )


@pytest.mark.parametrize(
    ("count", "reason", "said"),
    [(1, "software power cap", False), (2, "software power cap", True), (1, "hardware thermal slowdown", True)],
)
def test_a_power_cap_must_last_and_heat_need_not(count: int, reason: str, said: bool) -> None:
    assert bool(list(limits(throttled(count, reason)))) == said


def test_fewer_lanes_than_the_slot_has_are_said() -> None:
    readings = [CardReadings("untraced", 3, pcie_generation=1, pcie_width=8)]
    record = RunRecord(cards=[CardRecord(0, most_pcie_generation=5, most_pcie_width=16, readings=readings)])
    assert [finding.text for finding in limits(record)] == [
        "GPU 0 is on a PCIe x8 link (x16 supported): host-device copies are slower"
    ]


def test_healthy_cards_say_nothing() -> None:
    readings = [CardReadings("untraced", 9, sm_clock_mhz=1980, pcie_generation=5, pcie_width=16)]
    assert not list(limits(RunRecord(cards=[CardRecord(0, most_pcie_width=16, readings=readings)])))
    assert not list(limits(None))


def test_ranks_on_cpus_have_no_findings_of_cards() -> None:
    record = throttled(20, "hardware slowdown")
    record.cards_unread = gpu_readings.NO_LIBRARY
    assert not list(limits(record, [Facts(rank=0, device=DeviceFacts("cpu"))]))
    assert len(list(limits(record, [Facts(rank=0, device=DeviceFacts("cuda"))]))) == 2


def test_of_many_throttled_cards_a_few_are_named_and_the_rest_counted() -> None:
    records = [throttled(20, "hardware slowdown").cards[0] for _ in range(64)]
    found = list(limits(RunRecord(cards=records)))
    assert len(found) == 5
    assert found[-1].text == "60 more GPUs were throttled: see run.json"


@pytest.mark.parametrize(
    "value", ["null", "7", "[null]", '[{"index": "x"}]', '[{"index": 0, "readings": null}]'], ids=str
)
def test_cards_of_another_type_are_one_sentence(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.json").write_text(f'{{"cards": {value}}}')
    with pytest.raises(ValueError, match=r"run.json: .*cards"):
        json_files.read(tmp_path / "run.json", RunRecord)


@pytest.mark.long
def test_hostile_values_are_bounded(tmp_path: Path) -> None:
    huge = 10**4000
    readings = [{"window": "light", "samples": huge, "throttled": {"\x1b[2J" + "x" * 1000: huge}}] * 100
    (tmp_path / "run.json").write_text(json.dumps({"cards": [{"index": 0, "host": "h", "readings": readings}]}))
    found = list(limits(json_files.read(tmp_path / "run.json", RunRecord)))
    assert len(found) == 1
    assert "x" * 100 not in found[0].text


def test_a_run_of_an_older_version_has_no_cards(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"world_size": 1}')
    record = json_files.read(tmp_path / "run.json", RunRecord)
    assert record.cards == []
    assert not list(limits(record))
