"""Whose code a line is of: the script's own, or a package's, wherever that was installed."""

import sys

import pytest

from dptune.capture.injected.places import library, users_code, users_line


def frame_of(file):
    """A frame of code that lies in a file of that name."""
    found = {"sys": sys}
    exec(compile("frame = sys._getframe()", file, "exec"), found)
    return found["frame"]


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/usr/lib/python3/dist-packages/lightning/pytorch/loops/epoch.py", "lightning"),
        ("/opt/other/lib/python3.11/site-packages/lightning/epoch.py", "lightning"),
        ("C:\\envs\\a\\Lib\\site-packages\\single.py", "single"),
        ("/home/ada/site-packages-of-mine/train.py", ""),
        ("/home/ada/train.py", ""),
    ],
)
def test_a_line_is_of_a_package_wherever_it_was_installed(file, package):
    """Not only in the environment that runs, which may take packages from another one."""
    frame = frame_of(file)
    assert library(frame) == package
    assert (users_code(frame.f_code) is None) == bool(package)
    assert str(users_line(frame)).startswith(file) == (not package)


def test_torch_is_told_from_other_packages():
    import torch

    assert library(frame_of(torch.__file__)) == "torch"
