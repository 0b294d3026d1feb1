"""Changes as a diff that git and patch apply, and the script that comes of it."""

import os
import shutil
import subprocess
import sys

import pytest

from dptune.advice import Change, Location
from dptune.patch.diff import patches

CAP, WORKERS, BATCH = "ddp.bucket_cap_mb", "loader.num_workers", "loader.batch_size"
APPLY = [["git", "apply"], ["patch", "-p1"]]


def change(knob, then, file="train.py", line=1):
    return Change(knob=knob, now=None, then=then, at=Location(file=file, line=line))


@pytest.fixture(params=APPLY, ids=" ".join)
def apply(request, tmp_path):
    """Applies a diff in the folder of the scripts; the tool may not guess, nor say that it did."""
    if not shutil.which(request.param[0]):
        pytest.skip(f"needs {request.param[0]}")

    def run(diff, folder=tmp_path):
        done = subprocess.run(request.param, cwd=folder, input=diff.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done
        assert b"fuzz" not in done.stdout
        assert b"Stripping" not in done.stdout

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\r\nl = DataLoader(ds)\r\ny = 2\r\n", "x = 1\r\nl = DataLoader(ds, num_workers=2)\r\ny = 2\r\n"),
        ("x = 1\r\nl = DataLoader(ds)", "x = 1\r\nl = DataLoader(ds, num_workers=2)"),
        ("x = 1\r\nl = DataLoader(ds)\ny = 2\r\n", "x = 1\r\nl = DataLoader(ds, num_workers=2)\ny = 2\r\n"),
        ("x = 1\rl = DataLoader(ds)\ry = 2\r", "x = 1\rl = DataLoader(ds, num_workers=2)\ry = 2\r"),
        ("# \x0c \x0b \x1c\nl = DataLoader(ds)\n\x0c\n", "# \x0c \x0b \x1c\nl = DataLoader(ds, num_workers=2)\n\x0c\n"),
        ("s = 'a\u2028b\x85'\nl = DataLoader(ds)\n", "s = 'a\u2028b\x85'\nl = DataLoader(ds, num_workers=2)\n"),
        ("\ufeff# é\nl = DataLoader(ds)\n", "\ufeff# é\nl = DataLoader(ds, num_workers=2)\n"),
        ("\n\tl = DataLoader(ds)".replace("\n", "if x:\n"), "if x:\n\tl = DataLoader(ds, num_workers=2)"),
    ],
    ids=["crlf", "crlf-no-end", "mixed", "cr", "form-feed", "u2028", "bom", "tab-no-end"],
)
def test_line_ends_and_marks_of_the_file_stay(tmp_path, apply, before, after):
    script = tmp_path / "train.py"
    script.write_bytes(before.encode())
    diff, left, _ = patches([change(WORKERS, 2, line=2)], tmp_path)
    assert left == []
    apply(diff)
    assert script.read_bytes() == after.encode()


def test_the_first_line_of_a_file_with_a_byte_order_mark(tmp_path, apply):
    script = tmp_path / "train.py"
    script.write_bytes("\ufeffl = DataLoader('é', 1)\n".encode())
    diff, *_ = patches([change(WORKERS, 2)], tmp_path)
    apply(diff)
    assert script.read_bytes() == "\ufeffl = DataLoader('é', 1, num_workers=2)\n".encode()


def test_a_file_in_another_encoding_keeps_it(tmp_path, apply):
    script = tmp_path / "train.py"
    before = "# coding: latin-1\ns = 'é'\n\n\n\n\nloader = DataLoader(ds)\n\n\n\n# à\n".encode("latin-1")
    script.write_bytes(before)
    diff, left, _ = patches([change(WORKERS, 2, line=7)], tmp_path)
    assert left == []
    apply(diff)
    assert script.read_bytes() == before.replace(b"ds)", b"ds, num_workers=2)")


def test_several_changes_of_several_files_are_one_diff(tmp_path, apply):
    (tmp_path / "train.py").write_text("ddp = DDP(net)\nloader = DataLoader(data, num_workers=0)\n")
    (tmp_path / "my lib").mkdir()
    (tmp_path / "my lib" / "dätä.py").write_text("\nloader = DataLoader(data)\n")
    asked = [
        change(CAP, 2.0),
        change(WORKERS, 4, line=2),
        change("loader.pin_memory", True, line=2),
        change(WORKERS, 2, "my lib/dätä.py", 2),
    ]
    diff, left, _ = patches(asked, tmp_path)
    assert left == []
    apply(diff)
    assert (tmp_path / "train.py").read_text() == (
        "ddp = DDP(net, bucket_cap_mb=2)\nloader = DataLoader(data, num_workers=4, pin_memory=True)\n"
    )
    assert (tmp_path / "my lib" / "dätä.py").read_text() == "\nloader = DataLoader(data, num_workers=2)\n"


def test_a_value_of_several_lines_does_not_move_the_changes_below_it(tmp_path, apply):
    script = tmp_path / "train.py"
    script.write_text("l = DataLoader(ds, batch_size=max(\n    1,\n    2,\n))\nm = DDP(net)\n")
    diff, left, _ = patches([change(BATCH, 8), change(CAP, 2.0, line=5)], tmp_path)
    assert left == []
    apply(diff)
    assert script.read_text() == "l = DataLoader(ds, batch_size=8)\nm = DDP(net, bucket_cap_mb=2)\n"


def test_two_modules_made_by_one_line_are_one_change_and_a_contradiction_is_refused(tmp_path, apply):
    script = tmp_path / "train.py"
    script.write_text("models = [DDP(net) for net in nets]\n")
    asked = [change(CAP, 2.0), change(CAP, 2.0), change(CAP, 3.0)]
    diff, left, _ = patches(asked, tmp_path)
    assert [(one.change, one.why) for one in left] == [
        (asked[2], "another recommendation sets it to 2.0 there, and only one of them can apply")
    ]
    apply(diff)
    assert script.read_text() == "models = [DDP(net, bucket_cap_mb=2) for net in nets]\n"


def test_a_diff_applies_in_a_folder_of_a_repository(tmp_path, apply):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    started = tmp_path / "examples"
    (started / "lib").mkdir(parents=True)
    for script in (started / "train.py", started / "lib" / "data.py"):
        script.write_text("l = DataLoader(ds)\n")
    diff, left, _ = patches([change(WORKERS, 2), change(WORKERS, 2, "lib/data.py")], started)
    assert left == []
    apply(diff, started)
    assert (started / "train.py").read_text() == "l = DataLoader(ds, num_workers=2)\n"
    assert (started / "lib" / "data.py").read_text() == "l = DataLoader(ds, num_workers=2)\n"


def test_a_file_is_named_as_patch_takes_it(tmp_path, apply):
    """Below the folder, without dots in its path, and where a link leads."""
    script = tmp_path / "lib" / "real.py"
    script.parent.mkdir()
    script.write_text("l = DataLoader(ds)\nm = DataLoader(ds)\no = DataLoader(ds)\n")
    (tmp_path / "link.py").symlink_to(script)
    asked = [
        change(WORKERS, 2, "link.py", 1),
        change(WORKERS, 2, "./lib/../lib/real.py", 2),
        change(WORKERS, 2, str(script), 3),
    ]
    diff, left, _ = patches(asked, tmp_path)
    assert left == []
    assert diff.count("+++ ") == 1
    apply(diff)
    assert script.read_text().count("num_workers=2") == 3


@pytest.mark.parametrize(
    ("text", "asked", "why"),
    [
        (
            "model = DDP(**options)\n",
            change(CAP, 1.0),
            "the call takes its arguments from a dictionary: set it there",
        ),
        ("\nmodel = DDP(net)\n", change(CAP, 1.0), "line 1 has no call to torch's DistributedDataParallel: the object"),
        ("model = DDP(net)\n", change(CAP, 1.0, line=9), "line 9 has no call"),
        ("model = DDP(net)\n", change(CAP, 1.0, line=0), "line 0 has no call"),
        ("loss.backward()\n", change("ddp.no_sync", True), "the file has 0 calls of step, and none can be identified"),
        ("y = model(x)\n", change("precision.autocast", "bf16"), "it is a context manager around lines of the script"),
        ("model = DDP(net)\n", change("ddp.comm_hook", "fp16"), "it is a separate statement; a diff sets only call"),
        ("", Change(knob="env.NCCL_P2P_DISABLE", now="1", then="0"), "it is an environment variable; a diff sets"),
        ("model = (\n", change(CAP, 1.0), ": '(' was never closed (line 1)"),
        ("l = DataLoader(a)\0\n", change(WORKERS, 1), "the file"),
        ("# coding: klingon\n", change(WORKERS, 1), "the file"),
        ("", change(CAP, 1.0, file="away.py"), "cannot read"),
        ("", change(CAP, 1.0, file=""), "cannot read"),
        ("", change(CAP, 1.0, file="../away.py"), "is outside of"),
        ("", change(CAP, 1.0, file="/away.py"), "is outside of"),
        ("", change(CAP, 1.0, file="a\nb.py"), "file name cannot be written in a diff"),
        ("", change(CAP, 1.0, file='"b.py'), "file name cannot be written in a diff"),
        ("", Change(knob=CAP, now=None, then=1.0), "the line that creates it is unknown"),
        ("l = DataLoader(ds, num_workers=2)\n", change(WORKERS, 2), "the script already sets this value"),
    ],
)
def test_what_has_no_patch_is_told_with_its_reason(tmp_path, text, asked, why):
    (tmp_path / "train.py").write_text(text)
    diff, left, _ = patches([asked], tmp_path)
    assert diff == ""
    assert [one.change for one in left] == [asked]
    assert why in left[0].why


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_a_pipe_in_place_of_the_script_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.py")
    diff, (left,), _ = patches([change(CAP, 1.0)], tmp_path)
    assert (diff, left.why) == ("", f"cannot read {tmp_path / 'train.py'}: it is not a regular file")


@pytest.mark.parametrize("text", ["x = 'é'\xff", "# coding: ascii\n# é", "# coding: latin-1\nl = DataLoader('é')\n"])
def test_bytes_that_a_printed_diff_cannot_hold_are_refused(tmp_path, text):
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))
    diff, (left,), _ = patches([change(WORKERS, 2, line=2)], tmp_path)
    assert diff == ""
    assert "UTF-8" in left.why or "the file" in left.why


def test_a_link_out_of_the_folder_or_to_itself_is_refused(tmp_path):
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "lib.py").write_text("l = DataLoader(ds)\n")
    (started / "out.py").symlink_to(tmp_path / "lib.py")
    (started / "loop.py").symlink_to(started / "loop.py")
    diff, (out, loop), _ = patches([change(WORKERS, 2, "out.py"), change(WORKERS, 2, "loop.py")], started)
    assert diff == ""
    assert "is outside of" in out.why
    assert "cannot read" in loop.why


def test_what_is_left_out_comes_in_the_order_of_the_changes(tmp_path):
    (tmp_path / "train.py").write_text("a = 1\nb = 2\nl = DataLoader(ds)\n")
    asked = [change(WORKERS, 2, line=1), change(WORKERS, 2, line=3), change(CAP, 1.0, "away.py"), change(WORKERS, 2)]
    diff, left, _ = patches(asked, tmp_path)
    assert "+l = DataLoader(ds, num_workers=2)\n" in diff
    assert [one.change for one in left] == [asked[0], asked[2], asked[3]]


def test_an_expression_that_a_value_replaces_is_named(tmp_path):
    """What set it, an option of the script say, sets nothing any more."""
    (tmp_path / "train.py").write_text(
        "l = DataLoader(ds, num_workers=args.workers)\n"
        "k = DataLoader(ds, num_workers=0)\n"
        "o = Adam(ps, betas=(0.9, 0.999))\n"
    )
    asked = [change(WORKERS, 2), change(WORKERS, 3, line=2), change("optimizer.betas", "0.8,0.99", line=3)]
    told = patches(asked, tmp_path)
    assert told.left_out == []
    assert told.taken_out == [
        "loader.num_workers in train.py:1 was `args.workers`, which no longer has an effect there"
    ]


def test_what_goes_with_a_learning_rate_is_set_beside_it(tmp_path, apply):
    (tmp_path / "train.py").write_text("o = AdamW(ps, lr=1e-3, weight_decay=0.1)\n")
    asked = [change("optimizer.lr", 2e-3), change("optimizer.betas", "0.6,0.996"), change("optimizer.eps", 5e-9)]
    diff, left, _ = patches(asked, tmp_path)
    assert left == []
    apply(diff)
    assert (tmp_path / "train.py").read_text() == (
        "o = AdamW(ps, lr=0.002, weight_decay=0.1, betas=(0.6, 0.996), eps=5e-09)\n"
    )


def test_a_call_within_another_is_changed_too(tmp_path, apply):
    (tmp_path / "train.py").write_text("o = AdamW(\n    DDP(net).parameters(), lr=1e-3\n)\n")
    asked = [change("optimizer.fused", True), change(CAP, 1.0, line=2), change("optimizer.lr", 2e-3)]
    diff, left, _ = patches(asked, tmp_path)
    assert left == []
    apply(diff)
    assert (tmp_path / "train.py").read_text() == (
        "o = AdamW(\n    DDP(net, bucket_cap_mb=1).parameters(), lr=0.002, fused=True\n)\n"
    )


def test_a_graph_that_the_diff_makes_static_counts_as_static(tmp_path):
    """Else the first step would run under `no_sync`, which a static graph does not allow."""
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = DDP(net)\nfor i in range(n):\n    model(i).backward()\n"
        "    if (i + 1) % 4 == 0:\n        optimizer.step()\n"
    )
    asked = [change("ddp.no_sync", True, line=4), change("ddp.static_graph", True, line=2)]
    diff, left, _ = patches(asked, tmp_path)
    assert left == []
    assert "if (i + 1) % 4 == 0 or i + 1 <= 4 else model.no_sync():" in diff


def test_what_libcst_does_not_keep_is_kept(tmp_path, apply):
    """A form feed and a backslash at the start of a line, and a last line ended by a carriage return."""
    before = "\x0cx = 1\r\x0c\r\\\r\\\rl = DataLoader(ds)\r\x0cy = 2\r"
    (tmp_path / "train.py").write_bytes(before.encode())
    diff, left, _ = patches([change(WORKERS, 2, line=5)], tmp_path)
    assert left == []
    apply(diff)
    assert (tmp_path / "train.py").read_bytes() == before.replace("(ds)", "(ds, num_workers=2)").encode()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a Python that takes it")
def test_a_script_of_a_newer_python_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "train.py").write_text("try:\n    l = DataLoader(ds)\nexcept A, B:\n    raise\n")  # Python 3.14
    _, (left,), _ = patches([change(WORKERS, 2, line=2)], tmp_path)
    assert "the file is not valid Python 3." in left.why
    assert left.why.endswith("(line 3); if the script needs a newer Python, run dptune with it")
    (tmp_path / "train.py").write_text("print 'a'\n")
    _, (left,), _ = patches([change(WORKERS, 2)], tmp_path)
    assert "newer" not in left.why


def test_a_chain_that_would_end_the_parser_is_refused(tmp_path):
    """libcst's parser nests what `or` joins, on a stack that has an end."""
    (tmp_path / "train.py").write_text(f"l = DataLoader(ds)\nx = {'a or ' * 30_000}a\n")
    _, (left,), _ = patches([change(WORKERS, 2)], tmp_path)
    assert left.why == "the file cannot be edited safely: edit it by hand"
