"""Files that a trace names by a part of their path get the path that the recording has."""

import pytest

from dptune.measure.host.script_places import in_each, in_functions, in_optimizer_loops, recorded_place
from dptune.measured import CodeSite, OptimizerLoop, UserCodeFigures, WaitSite
from dptune.runfile.facts import Facts, OptimizerFacts
from dptune.runfile.window import SampledFacts, Window


@pytest.mark.parametrize(
    ("place", "files", "found"),
    [
        ("train.py:9", ["scripts/train.py", "lib/data.py"], "scripts/train.py:9"),
        ("train.py:9", ["train.py", "lib/data.py"], "train.py:9"),
        ("train.py:9", ["a/train.py", "b/train.py"], "train.py:9"),  # either
        ("train.py:9", ["a/untrain.py"], "train.py:9"),
        ("net/train.py:9", ["/home/ada/net/train.py"], "/home/ada/net/train.py:9"),
        ("train.py:9", [], "train.py:9"),
    ],
)
def test_the_only_file_with_that_ending(place, files, found):
    assert recorded_place(place, files) == found


def recorded(file):
    window = Window("untraced", 3, [1] * 5)
    window.sampled = [SampledFacts([f"<module> ({file}:30)", f"main ({file}:20)"], "", "", "", 5, [0], [1])]
    return Facts(rank=0, windows=[window], optimizers=[OptimizerFacts(name="Own", where=f"{file}:3")])


def test_functions_of_the_script():
    site = CodeSite.model_construct(name="pick", at="train.py:4")
    figures = UserCodeFigures(ranks=[0], steps=2, basis="untraced", sites=[site])
    assert in_functions(figures, [recorded("scripts/train.py")]).sites[0].at == "scripts/train.py:4"
    assert in_functions(figures, []) is figures
    assert in_functions(None, [recorded("scripts/train.py")]) is None


def test_functions_in_a_list():
    site = CodeSite.model_construct(name="pick", at="train.py:4")
    (found,) = in_each([site], [recorded("scripts/train.py")])
    assert found.at == "scripts/train.py:4"
    assert in_each(None, []) is None


def test_functions_as_a_trace_writes_them():
    known = WaitSite.model_construct(call="cudaStreamSynchronize", function="train.py(4): pick")
    unknown = WaitSite.model_construct(call="cudaStreamSynchronize")
    found = in_each([known, unknown], [recorded("scripts/train.py")])
    assert [each.__dict__.get("function") for each in found] == ["scripts/train.py(4): pick", None]


def test_functions_of_an_optimizer():
    loop = OptimizerLoop.model_construct(optimizer="Own", functions=["step at train.py:4", "other"])
    (found,) = in_optimizer_loops([loop], [recorded("scripts/train.py")])
    assert found.functions == ["step at scripts/train.py:4", "other"]
    assert in_optimizer_loops(None, []) is None
