"""Generated scripts: each is run, patched with a real tool, and run again; only the one argument may differ."""

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dptune.advice import Change, Location
from dptune.patch.diff import patches

VALUES = (
    *("1", "(2)", "((3, 4))", "'é'", "'a\u2028b'", "'a\x0cb'", "[1, (2)]", "{'k': (1)}", "(lambda x=1: (x))(5)"),
    *("'''two\nlines'''", "max((1), 2)", "f'{1}é'", "'#'", "','", "')'", "(  # note )\n 7)", "1 if 0 else(2)", "-1"),
    *("(i for i in (1, 2))", "[\n1,\n2,\n]", "'a' 'b'", "'a'\n'b'", "(y := 3)", "not 1", "r'\\d'", "not(1)"),
)
# between the words of a call; a comment takes its line end with it
GAPS = ("", "", "", " ", "\t", "\n", "\n\t", "  # comment, (\n", "\\\n", "\x0c", "\n\n", "  # é\u2028 )\n")
# each with what stands around the call: a name over several lines needs parentheses of its own
NAMES = (
    *("{} = DataLoader(%)", "{} = torch.utils.data.DataLoader(%)", "{} = (DataLoader)(%)"),
    *("{} = torch . utils.\\\n data . DataLoader (%)", "{} = (torch\n    .utils\n  .data\n .DataLoader(%))"),
    *("{} = Trainer(1, DataLoader(%), (2))", "{} = [Trainer(DataLoader(%)) for _ in (1,)]"),
    *("if 1:\n\t{} = DataLoader(%)", "def make():\n    s = 'é'; return DataLoader(%)\n{} = make()"),
    *("'é', DataLoader(%); {} = 1", "{} = (lambda: DataLoader(%))()", "class {}:\n  a = DataLoader(\n%)"),
    *(
        "def {}(a=DataLoader(%)): pass",
        "{} = DataLoader(%) if 1 else None",
        "for {} in (1,):\n\tb = 2; DataLoader(%); c = 3",
    ),
    *("@(lambda f, a=DataLoader(%): f)\n# why\n@(lambda f: f)\ndef {}(): pass", "\\\n{} = DataLoader(%)"),
    *("def other(DataLoader): return DataLoader\n\x0c{} = DataLoader(%)", "assert not DataLoader(%), '{}'"),
    *("class {}:\n\tdef make(self):\n\n\t    return [DataLoader(%) for _ in (1,)]\n{}().make()",),
)
AROUND = (
    "a = 1",
    "\x0c",
    "# é",
    "s = 'u\u2028'",
    "",
    "t = '''\n\ttext'''",
    "# plain",
    "def f(): # \x0b\n\treturn 2",
    "\x0cb = 2; c = 3;",
)


# why a script has no patch, and what is in it then
REFUSED = {
    "not UTF-8": b"latin-1",
    "has side effects": b":=",
    "from a dictionary": rb"\*\*",
    "from a sequence": rb"\*",
    "cannot be edited safely": rb"(?s)\treturn 2.*[\r\n]\\[\r\n]",  # a dedent that libcst does not see
}


def _with_gaps(draw, words):
    return "".join(draw(st.sampled_from(GAPS)) + word for word in words) + draw(st.sampled_from(GAPS))


@st.composite
def calls(draw):
    """The text between the parentheses of one call."""
    if draw(st.integers(0, 9)) == 0:
        return _with_gaps(draw, ["(i)", " for i in", " (1, 2)"])
    values = st.sampled_from(VALUES)
    given_names = draw(st.lists(st.sampled_from(["shuffle", "timeout", "num_workers"]), unique=True))
    positional = draw(st.lists(values, max_size=5 if "num_workers" in given_names else 7))
    words = [[value] for value in positional] + [[name, "=", draw(values)] for name in given_names]
    words += (
        []
        if "num_workers" in given_names
        else draw(st.sampled_from([[], [], [], [["*", "[1]"]], [["**", "{'k': 1}"]], [["*[]"], ["**{}"]]]))
    )
    split = [word for one in words for word in [*one, ","]]
    return _with_gaps(draw, split if draw(st.booleans()) else split[:-1])


@st.composite
def scripts(draw):
    """The bytes of a script with one call of DataLoader in it."""
    around = st.lists(st.sampled_from(AROUND), max_size=6)
    statement = (
        draw(st.sampled_from(NAMES)).replace("{}", draw(st.sampled_from(["l", "é"]))).replace("%", draw(calls()))
    )
    text = "\n".join([*draw(around), statement + draw(st.sampled_from(["", "  # done", "; b = (2)"])), *draw(around)])
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1"]))
    if encoding == "latin-1":
        text = "# -*- coding: latin-1 -*-\n" + text.replace("\u2028", "ÿ")
    text += draw(st.sampled_from(["", "\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))).encode(encoding)


def run(source):
    """Line and arguments of the call, as a recording sees them."""
    made = []

    def loader(*args, **keywords):
        args = [list(one) if hasattr(one, "__next__") else "f" if callable(one) else one for one in args]
        keywords = {name: list(one) if hasattr(one, "__next__") else one for name, one in keywords.items()}
        made.append((sys._getframe(1).f_lineno, args, keywords))

    torch = SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(DataLoader=loader)))
    exec(compile(source, "train.py", "exec"), {"torch": torch, "DataLoader": loader, "Trainer": lambda *_: None})
    ((line, args, keywords),) = made
    return line, args, keywords


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1"]], ids=" ".join)
@given(source=scripts())
def test_a_patched_script_passes_the_same_but_for_one_argument(tmp_path_factory, tool, source):
    if not shutil.which(tool[0]):
        pytest.skip(f"needs {tool[0]}")
    folder = tmp_path_factory.mktemp("script")
    script = folder / "train.py"
    script.write_bytes(source)
    line, args, keywords = run(source)
    change = Change(knob="loader.num_workers", now=None, then=23, at=Location(file="train.py", line=line))
    diff, left, _ = patches([change], folder)
    if left:
        (one,) = left
        event(one.why)
        assert diff == ""
        assert any(why in one.why and re.search(cause, source) for why, cause in REFUSED.items())
        return
    subprocess.run([*tool], cwd=folder, input=diff.encode(), check=True, capture_output=True)
    after = script.read_bytes()
    if len(args) > 5:
        args[5] = 23
    else:
        keywords["num_workers"] = 23
        if b"num_workers" not in source:  # nothing goes away, and a generator alone gets its parentheses
            added = re.sub(rb"\(|, num_workers=23\)?|num_workers=23|\)", b"", after)
            assert added == re.sub(rb"\(|\)", b"", source)
    assert run(after)[1:] == (args, keywords)
    assert [end.strip(b" ") for end in re.findall(rb"[\r\n]+\Z", after)] == re.findall(rb"[\r\n]+\Z", source)
