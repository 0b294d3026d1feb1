"""What NVML says of the cards, from a library that stands in for it: no card is at hand where tests run."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dptune.advise.cards import limits
from dptune.capture import cards
from dptune.capture.conclusion import _cards
from dptune.runfile import form
from dptune.runfile.record import CardReadings, CardRecord, RunRecord

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
def nvml() -> ModuleType:
    module = ModuleType("pynvml")
    exec(textwrap.dedent(FAKE), module.__dict__)
    return module


def test_each_window_has_its_own_readings(nvml: ModuleType) -> None:
    read = cards.Cards(nvml, "node-1")
    for phase in ("warm-up", "unprofiled", "unprofiled", "unprofiled", "set-up of lean", "lean", "done"):
        read.look(phase)
    first, second = read.records(set())
    assert [(one.window, one.samples) for one in first.readings] == [("unprofiled", 3), ("lean", 1)]
    window = first.readings[0]
    assert (window.sm_clock_mhz, window.least_sm_clock_mhz, window.memory_clock_mhz) == (1920, 1860, 2619)
    assert (window.most_power_w, first.power_limit_w, window.most_temperature_c) == (412.5, 700.0, 61)
    assert (window.pcie_generation, window.pcie_width, first.most_pcie_width) == (5, 16, 16)
    assert window.throttled == {}  # an idle bit is no throttling
    assert second.readings[0].throttled == {"hardware thermal slowdown": 3}
    assert (second.uuid, second.name, second.driver) == ("GPU-bb", "NVIDIA H100 80GB HBM3", "580.159.04")


def test_a_query_without_an_answer_is_named_and_the_others_stay(nvml: ModuleType) -> None:
    read = cards.Cards(nvml, "node-1")
    read.look("unprofiled")
    card = read.records({"bb"})[0]
    assert card.unread == {"power_mw": "Not Supported"}
    assert card.readings[0].most_power_w is None
    assert card.readings[0].most_temperature_c == 61


def test_only_cards_that_ranks_computed_on_are_kept(nvml: ModuleType) -> None:
    assert [card.index for card in cards.Cards(nvml, "node-1").records({"bb"})] == [1]


def test_the_older_name_of_the_reasons_is_asked_where_the_new_one_fails(nvml: ModuleType) -> None:
    def fails(card: int) -> int:
        raise RuntimeError("Function Not Found")

    nvml.__dict__["nvmlDeviceGetCurrentClocksEventReasons"] = fails
    nvml.__dict__["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda card: 0x4
    read = cards.Cards(nvml, "node-1")
    read.look("lean")
    assert read.records({"aa"})[0].readings[0].throttled == {"software power cap": 1}


def test_without_the_library_a_machine_with_cards_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(cards, "importlib", SimpleNamespace(import_module=absent))
    monkeypatch.setattr(cards.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert cards.start("node-1") == (None, cards.NO_LIBRARY)
    assert "pip install 'dptune[gpu]'" in next(limits(RunRecord(cards_unread=cards.NO_LIBRARY))).text
    monkeypatch.setattr(cards.shutil, "which", lambda name: None)
    assert cards.start("node-1") == (None, "")


def test_a_driver_that_does_not_start_is_a_sentence(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("Driver/library version mismatch")

    nvml.__dict__["nvmlInit"] = fails
    monkeypatch.setitem(cards.importlib.sys.modules, "pynvml", nvml)  # type: ignore[attr-defined]
    monkeypatch.setattr(cards.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert cards.start("node-1") == (None, "NVML did not start: Driver/library version mismatch")


def test_a_recording_keeps_what_the_cards_showed(profile, tmp_path: Path) -> None:
    from .conftest import PLAIN

    library = tmp_path / "library"
    library.mkdir()
    (library / "pynvml.py").write_text(textwrap.dedent(FAKE))
    slow = PLAIN.replace("optimizer.step()", "optimizer.step(); import time; time.sleep(0.08)")
    run = profile(slow, "--unprofiled", "12", "--lean", "3", "--rich", "0", env={"PYTHONPATH": str(library)})
    assert run.status == 0, run.err
    record = form.read(run.folder / "run.json", RunRecord)
    assert [card.uuid for card in record.cards] == ["GPU-aa", "GPU-bb"]  # a CPU run names none of them: all are kept
    windows = {readings.window: readings for readings in record.cards[0].readings}
    assert windows["unprofiled"].samples >= 2
    assert windows["unprofiled"].most_power_w == 412.5
    assert run.record.cards_unread == ""


def test_cards_of_one_host_are_there_once_when_each_rank_has_a_launcher() -> None:
    one, two = (RunRecord(cards=[CardRecord(0, host="a"), CardRecord(1, host="a")]) for _ in range(2))
    other = RunRecord(cards=[CardRecord(0, host="b")])
    assert [(card.host, card.index) for card in _cards([one, two, other])] == [("a", 0), ("a", 1), ("b", 0)]


def throttled(count: int, reason: str, samples: int = 20) -> RunRecord:
    readings = CardReadings("unprofiled", samples, sm_clock_mhz=1410, throttled={reason: count})
    return RunRecord(cards=[CardRecord(3, most_sm_clock_mhz=1980, most_pcie_width=16, readings=[readings])])


def test_throttling_is_said_with_its_clock() -> None:
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
    readings = [CardReadings("unprofiled", 3, pcie_generation=1, pcie_width=8)]
    record = RunRecord(cards=[CardRecord(0, most_pcie_generation=5, most_pcie_width=16, readings=readings)])
    assert [finding.text for finding in limits(record)] == [
        "GPU 0 is connected by 8 PCIe lanes of 16: host-device copies are slower"
    ]


def test_healthy_cards_say_nothing() -> None:
    readings = [CardReadings("unprofiled", 9, sm_clock_mhz=1980, pcie_generation=5, pcie_width=16)]
    assert not list(limits(RunRecord(cards=[CardRecord(0, most_pcie_width=16, readings=readings)])))
    assert not list(limits(None))
