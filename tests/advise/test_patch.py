"""Changes as a diff that git applies, and the script that comes of it."""

import subprocess

import pytest

from dptune.advice import Change, Location
from dptune.advise.patch import patches

CAP, WORKERS = "ddp.bucket_cap_mb", "loader.num_workers"


def change(knob, then, file="train.py", line=1):
    return Change(knob=knob, now=None, then=then, at=Location(file=file, line=line))


@pytest.mark.parametrize(
    ("before", "after", "then"),
    [
        ("model = DDP(Net(3))\n", "model = DDP(Net(3), bucket_cap_mb=1)\n", 1.0),
        ("model = DDP(net, bucket_cap_mb=25)  # ä\n", "model = DDP(net, bucket_cap_mb=1.5)  # ä\n", 1.5),
        ("m = {'ä': DDP(net, [0])}\n", "m = {'ä': DDP(net, [0], bucket_cap_mb=1)}\n", 1.0),
        (
            "model = DDP(\n    net,\n    # a remark\n)\n",
            "model = DDP(\n    net, bucket_cap_mb=1,\n    # a remark\n)\n",
            1.0,
        ),
        ("model = DDP(net)", "model = DDP(net, bucket_cap_mb=None)", None),
        ("a = make()\n", "a = make(bucket_cap_mb=1)\n", 1.0),
    ],
)
def test_the_keyword_is_set_in_the_call_of_the_line(tmp_path, before, after, then):
    script = tmp_path / "train.py"
    script.write_text(before)
    diff, left = patches([change(CAP, then)], tmp_path)
    assert left == []
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, text=True, check=True)
    assert script.read_text() == after


def test_several_changes_of_several_files_are_one_diff(tmp_path):
    (tmp_path / "train.py").write_text("ddp = DDP(net)\nloader = DataLoader(data, num_workers=0)\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "data.py").write_text("\nloader = DataLoader(data)\n")
    asked = [change(CAP, 2.0), change(WORKERS, 4, line=2), change(WORKERS, 2, "lib/data.py", 2)]
    diff, left = patches(asked, tmp_path)
    assert left == []
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, text=True, check=True)
    assert (tmp_path / "train.py").read_text() == (
        "ddp = DDP(net, bucket_cap_mb=2)\nloader = DataLoader(data, num_workers=4)\n"
    )
    assert (tmp_path / "lib" / "data.py").read_text() == "\nloader = DataLoader(data, num_workers=2)\n"


@pytest.mark.parametrize(
    ("text", "asked", "why"),
    [
        ("model = DDP(**options)\n", change(CAP, 1.0), "the call takes its arguments from a dictionary"),
        ("\nmodel = DDP(net)\n", change(CAP, 1.0), "line 1 makes nothing: the file has changed since"),
        ("model = DDP(net)\n", change("ddp.no_sync", True), "it is not an argument of the call there"),
        ("model = (\n", change(CAP, 1.0), "was never closed"),
        ("", change(CAP, 1.0, file="away.py"), "cannot read"),
        ("", Change(knob=CAP, now=None, then=1.0), "the line that makes it is not known"),
    ],
)
def test_what_has_no_patch_is_told_with_its_reason(tmp_path, text, asked, why):
    (tmp_path / "train.py").write_text(text)
    diff, left = patches([asked], tmp_path)
    assert diff == ""
    assert [one.change for one in left] == [asked]
    assert why in left[0].why
