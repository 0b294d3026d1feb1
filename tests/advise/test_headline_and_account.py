"""The verdict of a report and the account below it never contradict each other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptune.advice import Trust
from dptune.advise.headline import headline
from dptune.advise.trust import judge
from dptune.measured import Account, Measured

from .. import reading  # noqa: TID252 - tests are no installed package

SETS = (
    *("nanogpt_8xh100", "torchrec_4xv100", "torchrec_qcomm_a_4xv100", "torchrec_qcomm_b_4xv100"),
    *("torchrec_resnet18_2xv100", "torchrec_straggler_4xv100", "hta_sampled_ranks"),
)
ROUNDING = 0.005
SOUND = Trust(level="sound", findings=[])


def contradiction(verdict: str, measured: Measured) -> str:
    """What of the verdict the account denies; "" for nothing."""
    computing = measured.share("compute_ns")
    spent = {
        "communication": measured.share("exposed_communication_ns"),
        "input": measured.share("input_idle_ns"),
        "copy": measured.share("copy_ns"),
        "idle": measured.share("other_idle_ns"),
    }
    if "ostly compute" in verdict and computing < 0.5:
        return f"compute takes {computing:.3f}"
    if ("nearly all the time" in verdict or "Compute-bound" in verdict) and computing < 0.8:
        return f"compute takes {computing:.3f}"
    about = {"Communication": "communication", "Straggler-bound": "communication", "Idle": "idle", "Copy": "copy"}
    about |= {"Input": "input"} if measured.known("device_kind") != "cpu" else {}
    named = next((what for words, what in about.items() if verdict.startswith(words)), None)
    if named is None:
        return ""
    if spent[named] + ROUNDING < max(spent.values()):
        return f"{named} takes {spent[named]:.3f} of {spent}"
    shares = [float(share) / 100 for share in re.findall(r"([\d.]+) %", verdict)]
    if "exposed communication, " in verdict:
        least = measured.account.share("exposed_transfer_ns")
        if not least - ROUNDING <= shares[0] <= least + 2 * ROUNDING:
            return f"{least:.3f} is exposed communication"
        shares = [sum(shares)]
    if named == "idle":
        spent["idle"] = measured.share("idle_ns")
    return "" if abs(shares[0] - spent[named]) <= 4 * ROUNDING else f"{named} is {spent[named]:.3f}"


def verdict_of(measured: Measured) -> str:
    return headline(measured, SOUND, (), (), ("XX109",), True).verdict


@pytest.mark.long
@given(st.lists(st.integers(0, 100), min_size=7, max_size=7).filter(any), st.sampled_from(["cpu", "cuda"]))
def test_of_any_account(hand_made, parts, device):
    names = ("compute_ns", "exposed_transfer_ns", "exposed_waiting_ns", "exposed_unsplit_ns")
    spent = dict(zip((*names, "copy_ns", "input_idle_ns", "host_idle_ns"), parts, strict=True))
    exposed = sum(spent[name] for name in names[1:])
    account = Account(window_ns=sum(parts), **spent, communication_ns=exposed)
    measured = hand_made.measured_run(spent=[account], device=device, wait_share=None)
    assert contradiction(verdict_of(measured), measured) == ""


@pytest.mark.parametrize(
    ("spent", "verdict"),
    [
        # Each of the parts of communication is less than what is idle, together they are more.
        (
            {"compute_ns": 61, "exposed_transfer_ns": 12, "exposed_waiting_ns": 9, "host_idle_ns": 18},
            "Communication-bound: 12 % of each step is exposed communication, 9 % is waiting for late ranks.",
        ),
        (
            {"compute_ns": 61, "exposed_transfer_ns": 4, "exposed_waiting_ns": 2, "exposed_unsplit_ns": 26}
            | {"host_idle_ns": 7},
            "Communication-bound: 4 % of each step is exposed communication, 2 % is waiting for late ranks, 26 % is "
            "one or the other.",
        ),
        (
            {"compute_ns": 61, "exposed_transfer_ns": 2, "exposed_waiting_ns": 4, "exposed_unsplit_ns": 26}
            | {"host_idle_ns": 7},
            "Communication-bound or straggler-bound: 2 % of each step is exposed communication, 4 % is waiting for "
            "late ranks, 26 % is one or the other.",
        ),
        (
            {"compute_ns": 31, "exposed_transfer_ns": 14, "copy_ns": 13, "input_idle_ns": 13, "host_idle_ns": 14}
            | {"exposed_waiting_ns": 0, "memset_ns": 15},
            "No single bottleneck: compute takes 31 % of each step, and 14 % of each step waits for communication.",
        ),
        (
            {"compute_ns": 36, "launch_idle_ns": 40, "host_idle_ns": 24},
            "Idle: the device is idle for 64 % of each step, 40 % while the host launches the next operation.",
        ),
        # Waiting for input is idle time, too, and no other limit: 28 % are more than 24 %.
        (
            {"compute_ns": 48, "input_idle_ns": 24, "launch_idle_ns": 23, "host_idle_ns": 5},
            "Idle: the device is idle for 52 % of each step, 24 % waiting for input and 23 % while the host launches "
            "the next operation.",
        ),
        # No cause takes more than half of the idle time.
        (
            {"compute_ns": 40, "launch_idle_ns": 30, "host_idle_ns": 30},
            "Idle: the device is idle for 60 % of each step.",
        ),
        (
            {"compute_ns": 78, "exposed_transfer_ns": 4, "copy_ns": 4, "host_idle_ns": 14},
            "Mostly compute: compute takes 78 % of each step, and no other cause stands out.",
        ),
    ],
)
def test_by_hand(make_measured, spent, verdict):
    exposed = sum(ns for name, ns in spent.items() if name.startswith("exposed"))
    measured = make_measured(spent=[Account(window_ns=100, **spent, communication_ns=exposed)], wait_share=None)
    assert verdict_of(measured) == verdict


OFTEN = ("nanogpt_8xh100", "hta_sampled_ranks")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.thorough) for name in SETS]
)
def test_of_public_sets(real_traces, name):
    agrees(real_traces / name)


@pytest.mark.thorough
def test_of_each_public_trace(real_traces, manifest_entry):
    agrees(real_traces / manifest_entry["file"])


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_of_findings(findings, every):
    for place in sorted((findings / "traces").glob("[!.]*"))[::every]:
        agrees(place)


def test_idle_time_that_the_profiler_causes_heads_no_report(findings):
    """94 % of the idle time is before one kernel of a compiled model, and a step that began with a full queue has none:
    31.9 ms of 76.8 to 83."""
    measured = reading.measured(findings / "traces" / "nanogpt_h2d_launchbound_false.json.gz")
    found = headline(measured, judge(measured, []), (), (), ("XX109",), False)
    assert found.verdict == "Launch-bound only while traced: without the profiler, expect a step of about 31.9 ms."
    assert "The profiler slows kernel launches: step 10 started with 316 launches queued" in found.why


def agrees(place):
    measured = reading.measured(place)
    if judge(measured, []).level != "unjudgeable":
        assert contradiction(verdict_of(measured), measured) == ""
