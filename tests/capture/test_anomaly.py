"""Where and how often the script turns anomaly detection on; dptune's own notes of lines do not count."""

import subprocess
import sys

SCRIPT = """
import torch
from dptune.capture.injected.observe import graph_passes
from dptune.capture.injected.observe.anomaly import Anomaly

observer = Anomaly()
observer.install()
weight = torch.ones(2, requires_grad=True)
for step in range(3):
    with torch.autograd.detect_anomaly():
        weight.sum().backward()
with torch.autograd.set_detect_anomaly(False):
    weight.sum().backward()
turn_on = compile("torch.autograd.set_detect_anomaly(True, check_nan=False)", graph_passes.__file__, "exec")
exec(turn_on, {"torch": torch})
print(observer.times, observer.where)
"""


def test_times_and_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    times, _, where = done.stdout.strip().partition(" ")
    assert (times, where.rpartition("/")[2]) == ("3", "train.py:10")
