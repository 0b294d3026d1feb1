"""The lines of the script that set up a library: of each argument, read from the source of the call."""

import textwrap
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the module that is tested imports it")

from dptune.capture.injected.observe.library_calls import LibraryCalls
from dptune.runfile.library_calls import LibraryCallFacts, line_of_argument, passed_at

LIBRARY = """
from dataclasses import dataclass, fields
from functools import wraps

@dataclass
class TrainingArguments:
    output_dir: str = "out"
    gradient_checkpointing: bool = False
    eval_steps: int = 0

    def __post_init__(self):
        self.eval_steps += 1

@dataclass
class SFTConfig(TrainingArguments):
    packing: bool = False

    def __post_init__(self):
        super().__post_init__()

def parsed(kind, **given):
    return kind(**given)

def from_environment(construct):
    @wraps(construct)
    def insert(self, *args, **kwargs):
        return construct(self, *args, **kwargs)
    return insert

class DDPStrategy:
    def __init__(self, broadcast_buffers=True):
        self.broadcast_buffers = broadcast_buffers

class Trainer:
    @from_environment
    def __init__(self, strategy="ddp", max_steps=1):
        self.strategy = DDPStrategy() if strategy == "ddp" else strategy
"""


@pytest.fixture
def ran(tmp_path):
    """Run a script that has these classes; gives what was noted, with lines instead of `file:line`."""
    library = ModuleType("library")
    exec(compile(LIBRARY, "/venv/lib/python3/site-packages/library/all.py", "exec", dont_inherit=True), vars(library))
    noted = LibraryCalls()
    for name, method in (("TrainingArguments", "__post_init__"), ("DDPStrategy", "__init__"), ("Trainer", "__init__")):
        noted._watch(library, name=name, method=method)

    def run(source):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(source))
        exec(compile(script.read_text(), str(script), "exec", dont_inherit=True), dict(vars(library)))
        lines = [(call.name, call.where, call.arguments) for call in noted.facts()]
        assert all(where.startswith(f"{script}:") for _, where, _ in lines)
        number = len(f"{script}:")
        return [(name, int(at[number:]), {key: int(to[number:]) for key, to in to.items()}) for name, at, to in lines]

    return run


def test_each_argument_has_the_line_that_passes_it(ran):
    """Arguments over several lines, a subclass of the library, one of the script, and two calls on one line."""
    assert ran("""\
        a = TrainingArguments(
            "out",
            gradient_checkpointing=True,
            eval_steps=5 if True else
            6,
        )
        b = SFTConfig(packing=True)
        class Mine(TrainingArguments):
            pass
        c = [TrainingArguments(eval_steps=1), Mine(
            gradient_checkpointing=True)]
        assert (a.eval_steps, b.eval_steps, c[0].eval_steps) == (6, 1, 2)
    """) == [
        ("TrainingArguments", 1, {"gradient_checkpointing": 3, "eval_steps": 4}),
        ("TrainingArguments", 7, {"packing": 7}),
        ("TrainingArguments", 10, {"eval_steps": 10}),
        ("TrainingArguments", 10, {"gradient_checkpointing": 11}),
    ]


def test_what_a_library_makes_itself_is_not_set_there(ran):
    """The Trainer makes its strategy itself. Arguments that are parsed have the parser's line."""
    assert ran("""\
        Trainer(max_steps=2)
        settings = {"eval_steps": 3}
        TrainingArguments(**settings)
        parsed(TrainingArguments, eval_steps=4)
        trainer = Trainer(strategy=DDPStrategy(
            broadcast_buffers=False))
        assert trainer.strategy.broadcast_buffers is False
    """) == [
        ("Trainer", 1, {"max_steps": 1}),
        ("TrainingArguments", 3, {}),
        ("TrainingArguments", 4, {}),
        ("DDPStrategy", 5, {"broadcast_buffers": 6}),
        ("Trainer", 5, {"strategy": 5}),
    ]


def test_the_line_to_change():
    """The argument, else the call that lacks it, else the argument of another call that would take the object."""
    trainer = LibraryCallFacts("Trainer", "a.py:9", {"strategy": "a.py:11", "max_steps": "a.py:12"})
    strategy = LibraryCallFacts("DDPStrategy", "a.py:3", {"static_graph": "a.py:4"})
    within = ("Trainer", "strategy")
    assert line_of_argument([strategy, trainer], "DDPStrategy", "static_graph", within) == "a.py:4"
    assert line_of_argument([strategy, trainer], "DDPStrategy", "broadcast_buffers", within) == "a.py:3"
    assert line_of_argument([trainer], "DDPStrategy", "broadcast_buffers", within) == "a.py:11"
    assert line_of_argument([LibraryCallFacts("Trainer", "a.py:9")], "DDPStrategy", "x", within) == "a.py:9"
    assert line_of_argument([trainer], "DDPStrategy", "broadcast_buffers") is None
    assert line_of_argument([], "TrainingArguments", "x") is None
    later = LibraryCallFacts("DDPStrategy", "b.py:1", {"static_graph": "b.py:2"})
    assert line_of_argument([strategy, later], "DDPStrategy", "static_graph") == "b.py:2"
    assert passed_at([strategy, trainer], ["max_steps", "strategy", "other"]) == ["a.py:12", "a.py:11"]
