"""What sampled lines of a script do, read from their source."""

import linecache

import pytest

from dptune.capture.injected.observe import line_forms
from dptune.capture.injected.observe.line_forms import form_of, loops_of

SOURCE = """\
import copy, json, math, random, re
import numpy as np, torch

WIDTH = 40

def bank(width, rate):
    return [math.sin(i) for i in range(width)]

def noisy(width):
    return [random.random() for i in range(width)]

def features(wave, rate):
    a = wave @ bank(WIDTH, 16000)
    b = bank(len(wave), 16000)
    c = noisy(WIDTH)
    return a

def step(model, rows, chosen, text, frame, scores):
    kept = copy.deepcopy(model.state_dict())
    held = {name: value.detach().clone() for name, value in model.state_dict().items()}
    norms = [value.norm() for value in model.parameters()]
    x = torch.tensor([rows[i] for i in chosen])
    y = torch.tensor([0.5, -0.5])
    z = torch.tensor(rows)
    words = re.findall("a", text)
    log.write(json.dumps(words))
    counts = torch.histc(x, 10)
    row = frame.iloc[3]
    numbers = torch.tensor(row[NUMERIC].to_numpy(dtype="float32"))
    label = torch.tensor(int(row["label"]))
    column = torch.tensor(frame["a"].to_numpy())
    stacked = torch.as_tensor(np.stack(rows))
    for _, record in frame.iterrows():
        texts.append(record["text"])
    best = sorted(scores)
    for p, t in zip(scores, chosen):
        hits += p == t
    for layer in model.layers:
        x = layer(x)
    for r in rows:
        for c in r:
            total += c
    for row in rows:
        for k in range(3):
            held[row][k] = scores[row, k].item()
    for k in range(3):
        noise = torch.randn(9)
    for token in text.lower().split():
        ids.append(held.get(token))
    drawn = rng.choice(9, size=3, p=scores)
    any_drawn = rng.choice(9)
    picked = random.sample(rows, 3)
    other = self.rng.randint(3, 9)
    several = self.rng.randint(3, 9, 100)
    wanted = rng.normal(size=9)
    sides = picture.convert("RGB").resize((8, 8))
    ids_of = self.tokenizer(text, truncation=True)
    return kept

def log(self, out):
    self.outputs = torch.cat([self.outputs, out])
    self.losses = np.append(self.losses, out)
    every = np.concatenate(self.parts)
    both = torch.cat([out, out])
    return torch.stack([one for one in self.parts])
"""


@pytest.fixture
def functions():
    """The functions of the script, compiled under a file name that linecache knows."""
    linecache.cache["/script/forms.py"] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), "/script/forms.py")
    code = compile(SOURCE, "/script/forms.py", "exec")
    yield {each.co_name: each for each in code.co_consts if hasattr(each, "co_name")}
    del linecache.cache["/script/forms.py"]


def line_of(text):
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("kept = copy", "copy"),
        ("held = ", "copy"),
        ("held[row][k] = ", "items"),
        ("norms = ", ""),
        ("x = torch.tensor([rows", "tensor"),
        ("y = torch.tensor([0.5", ""),
        ("z = torch.tensor(rows)", "tensor"),
        ("words = ", "reading"),
        ("log.write", "writing"),
        ("torch.histc", "histogram"),
        ("frame.iloc", "rows"),
        ("numbers = ", "rows"),
        ("label = ", "rows"),
        ("column = ", ""),
        ("stacked = ", ""),
        ("texts.append", "rows"),
        ("sorted(", "sorting"),
        ("hits += ", "elements"),
        ("x = layer(x)", ""),
        ("total += c", "elements"),
        ("noise = torch", ""),
        ("ids.append", "reading"),
        ("drawn = rng", "weighted"),
        ("any_drawn", "draws"),
        ("other = ", "draws"),
        ("several = ", ""),
        ("wanted = ", ""),
        ("sides = ", "reading"),
        ("ids_of = ", "reading"),
        ("picked = ", "deque"),
        ("return kept", ""),
    ],
)
def test_forms_of_the_innermost_line(functions, text, form):
    assert form_of([(functions["step"], line_of(text))])[0] == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("self.outputs = torch.cat", "joining"),
        ("self.losses = np.append", "joining"),
        ("every = ", "joining"),
        ("both = ", ""),
        ("return torch.stack", ""),
    ],
)
def test_what_an_attribute_holds_is_joined_again(functions, text, form):
    assert form_of([(functions["log"], line_of(text))])[0] == form


@pytest.mark.parametrize(
    ("text", "called", "found"),
    [
        ("a = wave", "bank", ("constants", 0)),
        ("b = bank", "bank", ("", 0)),  # its length differs
        ("c = noisy", "noisy", ("", 0)),  # its values differ
    ],
)
def test_a_call_with_constants_counts_where_nothing_in_the_function_differs(functions, text, called, found):
    frames = [(functions["features"], line_of(text)), (functions[called], functions[called].co_firstlineno)]
    assert form_of(frames) == found


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("total += c", "for c in r"),
        ("for c in r", "for r in rows"),  # of a loop's own line: the one around it
        ("for r in rows", ""),
        ("x = torch.tensor([rows", "x = torch.tensor([rows"),  # a comprehension is a loop of one line
        ("kept = copy", ""),
    ],
)
def test_the_innermost_loop_around_a_line(functions, text, loop):
    assert loops_of([(functions["step"], line_of(text))]) == [line_of(loop) if loop else 0]


def test_a_loop_around_another_function_is_not_around_its_lines(functions):
    frames = [(functions["step"], line_of("x = layer(x)")), (functions["features"], line_of("a = wave"))]
    assert loops_of(frames) == [line_of("for layer in"), 0]


def test_a_script_whose_source_is_not_there_has_no_forms(functions):
    del linecache.cache["/script/forms.py"]
    assert form_of([(functions["step"], 3)]) == ("", 0)
    linecache.cache["/script/forms.py"] = (0, None, [], "/script/forms.py")


def test_a_file_is_read_once_for_all_its_lines(functions, monkeypatch):
    walked = []
    walk = line_forms.ast.walk
    monkeypatch.setattr(line_forms.ast, "walk", lambda tree: walked.append(tree) or walk(tree))
    line_forms._indexed.cache_clear()
    code = functions["step"]
    for line in range(code.co_firstlineno, len(SOURCE.splitlines()) + 1):
        form_of([(code, line)])
    assert sum(isinstance(tree, line_forms.ast.Module) for tree in walked) == 1
