"""Broken copies of one trace of 5,082 events (real_traces/damaged), each read as far as it goes or refused."""

import re

import pytest

from dptune.errors import DptuneError
from dptune.trace import load

WHOLE = 5082

# file -> events read, and what the user is told: a pattern for each finding.
READ = {
    "bare_list.json": (WHOLE, []),
    "control_char_in_name.json": (WHOLE, ["rank 1 is missing"]),
    "gz_named_json.json": (WHOLE, ["rank 1 is missing"]),
    "invalid_utf8_name.json": (WHOLE, ["rank 1 is missing"]),
    "json_named_gz_but_plain.json.gz": (WHOLE, ["rank 1 is missing"]),
    "nan_inf_values.json": (WHOLE, ["rank 1 is missing"]),
    "negative_dur.json": (WHOLE, ["25 events have a negative duration, taken as 0", "rank 1 is missing"]),
    "no_distributedInfo.json": (WHOLE, []),
    "no_runtime_events.json": (4608, ["rank 1 is missing"]),
    "rank_clash_with_rank1.json": (WHOLE, ["rank 0 is missing"]),
    "trailing_comma.json": (WHOLE, ["rank 1 is missing"]),
    "truncated.json.gz": (
        3872,
        ["breaks off after 3,872 whole events, .*the gzip stream ends early", "rank 1 is missing"],
    ),
    "truncated_midway.json": (3234, ["breaks off after 3,234 whole events, at byte 648,567", "rank 1 is missing"]),
    "ts_as_strings.json": (WHOLE, ["rank 1 is missing"]),
    "two_ranks_interleaved.json": (
        308,
        ["breaks off after 308 whole events, at byte .*the file holds two traces", "rank 1 is missing"],
    ),
    "two_ranks_overwritten_tail.json": (
        WHOLE,
        [r"operators of 2 processes \(85867, 85866\): several ranks wrote to one file", "rank 0 is missing"],
    ),
    "unescaped_windows_backslash.json": (WHOLE, ["rank 1 is missing"]),
    "utf16.json": (WHOLE, ["rank 1 is missing"]),
    "utf8_bom.json": (WHOLE, ["rank 1 is missing"]),
}
# file -> how many events have a name that the damage itself changed
RENAMED = {"control_char_in_name.json": 5, "invalid_utf8_name.json": 5, "unescaped_windows_backslash.json": 40}
REFUSED = {
    "empty_object.json": "is not a torch.profiler trace: it is an empty JSON object",
    "empty_traceEvents.json": "is a torch.profiler trace without any events",
    "no_traceEvents_key.json": "has the header of a torch.profiler trace but no traceEvents",
    "zero_bytes.json": r"is empty \(0 bytes\)",
}


@pytest.mark.parametrize("name", READ)
def test_is_read_as_far_as_it_goes(real_traces, name):
    events, findings = READ[name]
    run = load([real_traces / "damaged" / name])
    assert run.ranks[0].light.events == events
    assert len(run.findings) == len(findings)
    for finding, pattern in zip(run.findings, findings, strict=True):
        assert re.search(pattern, finding.text), finding.text


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_a_sentence_and_a_hint(real_traces, name):
    with pytest.raises(DptuneError, match=REFUSED[name]) as refused:
        load([real_traces / "damaged" / name])
    assert refused.value.hint
    assert "\n" not in refused.value.message


def test_every_damaged_file_has_an_outcome_here(real_traces):
    files = {path.name for path in (real_traces / "damaged").iterdir()} - {"DERIVED.json"}
    assert files == set(READ) | set(REFUSED)


@pytest.mark.parametrize("name", [name for name, (events, _) in READ.items() if events == WHOLE and "two_" not in name])
def test_damage_in_form_only_changes_no_time(real_traces, name):
    sound = load([next((real_traces / "torchrec_resnet18_2xv100").glob("1fea3db*"))]).ranks[0].light.columns
    mended = load([real_traces / "damaged" / name]).ranks[0].light.columns
    assert mended.ts_ns.tolist() == sound.ts_ns.tolist()
    if name != "negative_dur.json":
        assert mended.dur_ns.tolist() == sound.dur_ns.tolist()
    assert mended.correlation.tolist() == sound.correlation.tolist()
    renamed = sum(mended.name(row) != sound.name(row) for row in range(len(sound)))
    assert renamed == RENAMED.get(name, 0)


def test_a_damaged_file_among_sound_ones_is_named_and_left_out(real_traces):
    sound = next((real_traces / "torchrec_resnet18_2xv100").glob("030dc89*"))
    run = load([sound, real_traces / "damaged" / "zero_bytes.json"])
    assert [rank.rank for rank in run.ranks] == [1]
    assert [finding.code for finding in run.findings] == ["file-unreadable", "ranks-missing"]
    assert "zero_bytes.json is empty" in run.findings[0].text


def test_two_files_that_claim_one_rank_are_both_named(real_traces):
    sound = next((real_traces / "torchrec_resnet18_2xv100").glob("030dc89*"))
    run = load([sound, real_traces / "damaged" / "rank_clash_with_rank1.json"])
    duplicate = next(finding for finding in run.findings if finding.code == "rank-duplicate")
    assert "two files claim rank 1" in duplicate.text
    assert sound.name in duplicate.text
    assert "rank_clash_with_rank1.json left out" in duplicate.text
