"""Micro-batches put into `no_sync`: which loops, how, what is refused, and that the model learns the same."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import unittest.mock
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.patch.no_sync import import_contextlib, put_in_no_sync
from dptune.patch.source import EditError, Source

from .. import forks  # noqa: TID252 - tests are no installed package

WITHOUT_COMPILER = Path(__file__).parents[1] / "without_compiler"
HEAD = """\
import os
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BY_NUMBER = """\
for i, batch in enumerate(loader):
    loss = loss_of(model(batch))
    loss.backward()
    if (i + 1) % k == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
PATCHED_BY_NUMBER = """\
for i, batch in enumerate(loader):
    with contextlib.nullcontext() if (i + 1) % k == 0 else model.no_sync():
        loss = loss_of(model(batch))
        loss.backward()
    if (i + 1) % k == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def in_no_sync(text, line):
    source = Source(text.encode())
    put_in_no_sync(source, line)
    return source.data.decode()


def imported(text):
    source = Source(text.encode())
    import_contextlib(source)
    return source.data.decode()


def edit(loop, head=HEAD):
    """The loop after the edit; `head` stays as it is."""
    text = head + loop
    lines = [number for number, row in enumerate(text.split("\n"), 1) if "backward(" in row]
    after = in_no_sync(text, lines[0])
    assert after.startswith(head)
    return after[len(head) :]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BY_NUMBER, PATCHED_BY_NUMBER),
        (BY_NUMBER.replace("\n", "\r\n"), PATCHED_BY_NUMBER.replace("\n", "\r\n")),
        (BY_NUMBER.replace("    ", "\t"), PATCHED_BY_NUMBER.replace("    ", "\t")),
        (  # counted between the passes and the test; what comes after the passes stays outside
            "while True:\n"
            "    for x in loader:\n"
            "        y = model(x)  # forward\n"
            "\n"
            "        # and back\n"
            "        y.sum().backward()\n"
            "        n += 1\n"
            "        seen += len(x)\n"
            "        if n % a.k == 0 or n == len(data):\n"
            "            optimizer.step()\n",
            "while True:\n"
            "    for x in loader:\n"
            "        with contextlib.nullcontext() if (n + 1) % a.k == 0 or n + 1 == len(data) else model.no_sync():\n"
            "            y = model(x)  # forward\n"
            "\n"
            "            # and back\n"
            "            y.sum().backward()\n"
            "        n += 1\n"
            "        seen += len(x)\n"
            "        if n % a.k == 0 or n == len(data):\n"
            "            optimizer.step()\n",
        ),
        (  # a loop of micro-batches
            "for _ in range(steps):\n"
            "    optimizer.zero_grad()\n"
            "    for micro in range(k):\n"
            "        x = next(batches)\n"
            "        with torch.autocast('cpu'):\n"
            "            loss = model(x).sum() / k\n"
            "        scaler.scale(loss).backward()\n"
            "    scaler.step(optimizer)\n"
            "    scheduler.step()\n",
            "for _ in range(steps):\n"
            "    optimizer.zero_grad()\n"
            "    for micro in range(k):\n"
            "        x = next(batches)\n"
            "        with contextlib.nullcontext() if micro == k - 1 else model.no_sync():\n"
            "            with torch.autocast('cpu'):\n"
            "                loss = model(x).sum() / k\n"
            "            scaler.scale(loss).backward()\n"
            "    scaler.step(optimizer)\n"
            "    scheduler.step()\n",
        ),
        (  # of what has a length
            "def update(self, batches):\n"
            "    for images, target in batches:\n"
            "        loss = loss_of(model(images), target) / len(batches)\n"
            "        loss.backward()\n"
            "    optimizer.step()\n",
            "def update(self, batches):\n"
            "    for micro, (images, target) in enumerate(batches):\n"
            "        with contextlib.nullcontext() if micro == len(batches) - 1 else model.no_sync():\n"
            "            loss = loss_of(model(images), target) / len(batches)\n"
            "            loss.backward()\n"
            "    optimizer.step()\n",
        ),
        (  # that is counted already
            "for i, x in enumerate(parts):\n    (model(x) / len(parts)).backward()\noptimizer.step()\n",
            "for i, x in enumerate(parts):\n"
            "    with contextlib.nullcontext() if i == len(parts) - 1 else model.no_sync():\n"
            "        (model(x) / len(parts)).backward()\n"
            "optimizer.step()\n",
        ),
        (  # of a number that is written there
            "for micro in range(4):\n    model(x).sum().backward()\noptimizer.step()\n",
            "for micro in range(4):\n"
            "    with contextlib.nullcontext() if micro == 3 else model.no_sync():\n"
            "        model(x).sum().backward()\n"
            "optimizer.step()\n",
        ),
        (  # left early, unless it is the last
            "for i, x in enumerate(loader):\n"
            "    loss = step(model, x)\n"
            "    loss.backward()\n"
            "    if (i + 1) % cfg['k'] != 0:\n"
            "        continue\n"
            "    optimizer.step()\n",
            "for i, x in enumerate(loader):\n"
            "    with contextlib.nullcontext() if (i + 1) % cfg['k'] == 0 else model.no_sync():\n"
            "        loss = step(model, x)\n"
            "        loss.backward()\n"
            "    if (i + 1) % cfg['k'] != 0:\n"
            "        continue\n"
            "    optimizer.step()\n",
        ),
        (  # text keeps its lines as they are, what a backslash continues goes along
            "for i, x in enumerate(loader):\n"
            "    loss = loss_of(model(x),\n"
            '                   """a\n  b""") + \\\n'
            "        other\n"
            "    loss.backward()\n"
            "    if (i + 1) % k == 0:\n"
            "        optimizer.step()\n",
            "for i, x in enumerate(loader):\n"
            "    with contextlib.nullcontext() if (i + 1) % k == 0 else model.no_sync():\n"
            "        loss = loss_of(model(x),\n"
            '                       """a\n  b""") + \\\n'
            "            other\n"
            "        loss.backward()\n"
            "    if (i + 1) % k == 0:\n"
            "        optimizer.step()\n",
        ),
        (  # in a `with` of its own, and a test of another kind
            "for i, x in enumerate(loader):\n"
            "    with torch.autocast('cpu'):\n"
            "        loss = model(x).sum()\n"
            "        loss.backward()\n"
            "    if not (i + 1) % k:\n"
            "        optimizer.step()\n",
            "for i, x in enumerate(loader):\n"
            "    with contextlib.nullcontext() if not (i + 1) % k else model.no_sync():\n"
            "        with torch.autocast('cpu'):\n"
            "            loss = model(x).sum()\n"
            "            loss.backward()\n"
            "    if not (i + 1) % k:\n"
            "        optimizer.step()\n",
        ),
    ],
    ids=["number", "crlf", "tabs", "counter", "range", "length", "enumerate", "range-of-4", "continue", "text", "with"],
)
def test_the_passes_of_a_micro_batch_go_into_no_sync(before, after):
    assert edit(before) == after


COUNTED_BY_RANGE = PATCHED_BY_NUMBER.replace("i, batch in enumerate(loader)", "i in range(n)").replace(
    "k == 0 else", "k == 0 or i + 1 <= k else"
)
STATIC = HEAD.replace("DDP(net)", "DDP(net, static_graph=True)")
BY_STEPS = "for {} in {}:\n    for micro in range(k):\n        model(x).backward()\n    optimizer.step()\n"
STATIC_BY_STEPS = (
    "for {} in {}:\n    for micro in range(k):\n"
    "        with contextlib.nullcontext() if micro == k - 1 or {} == 0 else model.no_sync():\n"
    "            model(x).backward()\n    optimizer.step()\n"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BY_NUMBER, PATCHED_BY_NUMBER.replace("k == 0 else", "k == 0 or i + 1 <= k else")),
        (BY_NUMBER.replace("i, batch in enumerate(loader)", "i in range(n)"), COUNTED_BY_RANGE),
        (BY_STEPS.format("step", "range(9)"), STATIC_BY_STEPS.format("step", "range(9)", "step")),
        (BY_STEPS.format("n, y", "enumerate(data)"), STATIC_BY_STEPS.format("n, y", "enumerate(data)", "n")),
        (BY_STEPS.format("_", "range(9)"), STATIC_BY_STEPS.format("step, _", "enumerate(range(9))", "step")),
        (
            BY_STEPS.format("step", "range(resumed, 9)"),
            STATIC_BY_STEPS.format("step_number, step", "enumerate(range(resumed, 9))", "step_number"),
        ),
        (BY_STEPS.format("y", "data"), STATIC_BY_STEPS.format("step, y", "enumerate(data)", "step")),
    ],
    ids=["number", "range", "steps", "enumerated", "nameless", "resumed", "not counted"],
)
def test_with_a_static_graph_the_first_step_is_synchronized(before, after):
    assert edit(before, STATIC) == after


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("DDP(net)", "DDP(net, static_graph=args.static)"),
        HEAD.replace("DDP(net)", "DDP(net, **options)"),
        HEAD.replace("DDP(net)", "DDP(net, None, None, 0, True, None, 25, False, False, True, True)"),
        HEAD + "model._set_static_graph()\n",
    ],
    ids=["computed", "options", "by position", "set afterwards"],
)
def test_a_graph_that_may_be_static_counts_as_one(head):
    assert " or i + 1 <= k else model.no_sync():" in edit(BY_NUMBER, head)
    assert edit(BY_NUMBER, HEAD.replace("DDP(net)", "DDP(net, static_graph=False)")) == PATCHED_BY_NUMBER


@pytest.mark.parametrize(
    ("made", "static"),
    [
        ("more = {}", False),
        ('more = {} if args.cap is None else {"bucket_cap_mb": args.cap}', False),
        ('more = {"static_graph": False}', False),
        ('more = {"static_graph": True}', True),
        ("more = vars(args)", True),
        ('more = {}\nmore["static_graph"] = True', True),
        ("more = {}\nmore.update(settings)", True),
        ("other = {}\nmore = other", True),
        ('more = {**settings, "bucket_cap_mb": 1}', True),
        ("", True),
    ],
)
def test_a_dictionary_of_arguments_is_looked_into(made, static):
    """`DDP(net, **more)`: what is not known may have a static graph."""
    head = HEAD.replace("model = DDP(net)", f"{made}\nmodel = DDP(net, **more)")
    assert (edit(BY_NUMBER, head) != PATCHED_BY_NUMBER) == static


@pytest.mark.parametrize(
    "loop",
    [
        BY_NUMBER.replace("enumerate(loader)", "enumerate(loader, resumed)"),
        BY_NUMBER.replace("for i, batch in enumerate(loader)", "i = resumed\nfor batch in loader"),
        BY_NUMBER.replace("(i + 1) % k == 0", "i == last"),
        "def update(x):\n    for micro in range(k):\n        model(x).backward()\n    optimizer.step()\n",
        "while step < 9:\n    for micro in range(k):\n        model(x).backward()\n    optimizer.step()\n",
    ],
    ids=["resumed", "counted from somewhere", "no count", "a function", "while"],
)
def test_with_a_static_graph_it_is_refused_where_the_first_step_is_not_known(loop):
    with pytest.raises(EditError, match="static_graph=True requires every micro-batch of the first step to be"):
        edit(loop, STATIC)
    assert "no_sync" in edit(loop)


@pytest.mark.parametrize(
    ("head", "guard"),
    [
        (HEAD.replace("model = DDP(net)", "model = net\nif distributed:\n    model = DDP(model)"), "model, DDP"),
        (
            HEAD.replace("model = DDP(net)", "model = DDP(net)\ndef train(model):\n  pass"),
            "",
        ),
    ],
    ids=["wrapped on a condition", "a function beside it"],
)
def test_a_model_that_may_not_be_wrapped_is_asked(head, guard):
    """`no_sync` is DistributedDataParallel's alone."""
    told = edit(BY_NUMBER, head)
    assert (f" or not isinstance({guard}) else model.no_sync():" in told) == bool(guard)
    assert "isinstance" not in told or guard


def test_a_model_that_is_an_argument_is_asked():
    loop = "def train(model, loader):\n" + "".join(f"    {row}\n" for row in BY_NUMBER.splitlines())
    assert "if (i + 1) % k == 0 or not isinstance(model, DDP) else model.no_sync():" in edit(loop)
    method = loop.replace("train(model,", "train(self,").replace("model", "self.model")
    head = HEAD.replace("model", "self.model")
    assert "or not isinstance(self.model, DDP) else self.model.no_sync():" in edit(method, head)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("model(batch)", "forward(batch)", "no forward pass of `model` was found"),
        ("    loss.backward()", "    loss.backward(); x = 1", "cannot be edited safely"),
        ("    loss.backward()", "    with model.no_sync():\n        loss.backward()", "already controls gradient"),
        ("    loss.backward()", "    loss.backward()\n    i = 3", "line 10 may change the value of `(i + 1) % k == 0`"),
        ("    loss.backward()", "    loss.backward()\n    k += 2", "line 10 may change the value of"),
        ("    loss.backward()", "    loss.backward()\n    norm = net.weight.grad.norm()", "line 10 reads gradients"),
        ("(i + 1) % k == 0", "is_last(i)", "may have another value before the forward pass"),
        ("(i + 1) % k == 0", "(i := i + 1) % k == 0", "may have another value before the forward pass"),
        ("(i + 1) % k == 0", "state.done", "line 8 may change the value of `state.done`"),
        ("    if (i", "    if (j", ""),
        ("optimizer.zero_grad()", "optimizer.zero_grad()\noptimizer.step()", "has 2 calls of step"),
        ("optimizer.step()", "update()", "has 0 calls of step"),
        (
            "    if (i + 1) % k == 0:",
            "    for _ in range(2):",
            "no test for the last micro-batch of a step was found",
        ),
        ("    loss.backward()", "    if loss > 0:\n        loss.backward()", "no test for the last micro-batch"),
        ("    loss.backward()", "    loss.backward(); loss.backward()", "calls backward more than once"),
        ("    loss.backward()", "    grads = loss.backward()", "has no call of backward as a separate statement"),
    ],
)
def test_what_is_not_sure_is_refused(before, after, why):
    loop = BY_NUMBER.replace(before, after).replace("loss_of(model(batch))", "loss_of(model(batch), state)")
    if why:
        with pytest.raises(EditError) as raised:
            edit(loop)
        assert why in str(raised.value)
    else:
        assert "no_sync" in edit(loop)


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (HEAD.replace("DDP(net)", "wrap(net)"), "the file creates 0 DistributedDataParallel"),
        (HEAD + "other = DDP(net)\n", "the file creates 2 DistributedDataParallel"),
        (HEAD.replace("model = DDP(net)", "model = other = DDP(net)"), "is not assigned to a single name"),
        (HEAD + "model = torch.compile(model)\n", "`model` is reassigned on line 7"),
        (HEAD + "model, optimizer = prepare(model, optimizer)\n", "`model` is reassigned on line 7"),
    ],
)
def test_a_model_of_which_it_is_not_sure_is_refused(head, why):
    with pytest.raises(EditError) as raised:
        edit(BY_NUMBER, head)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (
            "for micro in range(k):\n    model(x).backward()\n    if bad: break\noptimizer.step()\n",
            "may end before its",
        ),
        (
            "for micro in range(1, k):\n    model(x).backward()\noptimizer.step()\n",
            "is known only in loops over `range(...)`",
        ),
        ("for micro in parts:\n    model(x).backward()\noptimizer.step()\n", "known only in loops over `range(...)`"),
        (
            "for x in parts:\n    model(x, len(parts)).backward()\n    parts.pop()\noptimizer.step()\n",
            "line 9 may change the value of `micro == len(parts) - 1`",
        ),
        ("for micro in range(k):\n    k = 3\n    model(x).backward()\noptimizer.step()\n", "line 8 may change the"),
        ("for micro in range(k):\n    model(x).backward()\nelse:\n    y()\noptimizer.step()\n", "was found around"),
    ],
)
def test_a_loop_of_which_the_last_is_not_sure_is_refused(loop, why):
    with pytest.raises(EditError) as raised:
        edit(loop)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os\nimport sys\n", "import contextlib\nimport os\nimport sys\n"),
        ("import argparse\nimport os\n", "import argparse\nimport contextlib\nimport os\n"),
        ('"""Doc."""\nfrom __future__ import annotations\nfrom a import b\n', None),
        ("import argparse\r\nx = 1\r\n", "import argparse\r\nimport contextlib\r\nx = 1\r\n"),
        ("import os, contextlib\n", "import os, contextlib\n"),
        ("import contextlib as c\n", "import contextlib\nimport contextlib as c\n"),
    ],
)
def test_its_import_stands_among_the_others(before, after):
    if after is None:
        after = before.replace("from a", "import contextlib\nfrom a")
    assert imported(f"{before}y = 2\n") == f"{after}y = 2\n"


def test_without_imports_it_is_refused():
    with pytest.raises(EditError, match="the file has no imports"):
        imported("x = 1\n")


SCRIPT = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
communicated = []


def counting(state, bucket):
    communicated.append(bucket.index())
    future = dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


model.register_comm_hook(None, counting)
torch.manual_seed(dist.get_rank())
for number in range(14):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    if (number + 1) % 4 == 0 or number == 13:
        optimizer.step()
        optimizer.zero_grad()
print(len(communicated), *model.module.weight.flatten().tolist(), flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # with static_graph=True, torch aborts in some exits of the interpreter
"""


@pytest.mark.records
@pytest.mark.parametrize(
    ("static", "collectives"), [pytest.param(False, "4", marks=pytest.mark.thorough), (True, "7")]
)  # a static graph's first step has 4
def test_the_patched_script_learns_the_same_with_fewer_collectives(tmp_path, static, collectives):
    script = SCRIPT.replace("Linear(8, 1))", f"Linear(8, 1), static_graph={static})")
    patched = imported(in_no_sync(script, 24))
    assert patched != script
    told = []
    for number, text in enumerate((script, patched)):
        script = tmp_path / f"train{number}.py"
        script.write_text(text)
        env = {**os.environ, "MEET": str(tmp_path / f"meet{number}"), "PYTHONPATH": str(WITHOUT_COMPILER)}
        outputs = [tmp_path / f"told{number}-{rank}" for rank in range(2)]
        with contextlib.ExitStack() as opened:
            ranks = [
                forks.popen(
                    [sys.executable, str(script)],
                    env={**env, "RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=opened.enter_context(output.open("w")),
                )
                for rank, output in enumerate(outputs)
            ]
            assert [rank.wait(900) for rank in ranks] == [0, 0]
        told.append([output.read_text().split() for output in outputs])
    (before, same), (after, alike) = told
    assert (before, after) == (same, alike)  # ranks stay as one
    assert (before[0], after[0]) == ("14", collectives)
    assert [float(one) for one in after[1:]] == pytest.approx([float(one) for one in before[1:]], rel=1e-4)


LOOPS = {
    "number": """
for i, batch in enumerate(batches):
    {before}
    loss = model(batch)
    loss.backward()
    {after}
    if (i + 1) % {k} == 0:
        optimizer.step()
""",
    "counter": """
n = 0
while n < {many}:
    {before}
    loss = model(n)
    loss.backward()
    n += 1
    {after}
    if n % {k} == 0 or n == {many}:
        optimizer.step()
""",
    "continue": """
for i, batch in enumerate(batches):
    {before}
    model(batch).backward()
    {after}
    if (i + 1) % {k} != 0:
        continue
    optimizer.step()
""",
    "range": """
for _ in range({many}):
    for micro in range({k}):
        {before}
        model(micro).backward()
        {after}
    optimizer.step()
""",
}
LOOPS["length"] = """
parts = [*range({k})]
for _ in range({many}):
    for part in parts:
        {before}
        loss = model(part, len(parts))
        loss.backward()
        {after}
    optimizer.step()
"""
OTHER = [
    "pass",
    "seen = len(batches)",
    "print(optimizer)",
    "if model is None: raise SystemExit",
    "total = 0; total += 1",
]
MADE = "import torch\nfrom torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(None)\n"


class Recorded:
    """Stands for the model, its loss and the optimizer: keeps what was called, and whether that was in `no_sync`."""

    def __init__(self):
        self.calls, self._syncs = [], True

    def __call__(self, *batch):
        self.calls.append(("forward", self._syncs))
        return self

    def backward(self):
        self.calls.append(("backward", self._syncs))

    def step(self):
        self.calls.append(("step", self._syncs))

    @contextlib.contextmanager
    def no_sync(self):
        self._syncs = False
        yield
        self._syncs = True


# how a script may be written otherwise; each still runs
WRITTEN = {
    "as it is": lambda text: text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "cr": lambda text: text.replace("\n", "\r").encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
    "mark": lambda text: ("\ufeff" + text).encode(),
    "latin": lambda text: ("# coding: latin-1\n# é\n" + text).encode("latin-1"),
    "comments": lambda text: re.sub(r"\n( +)(?=\S)", r"\n\1# é (\n\n\1  # [\n\1", text).encode(),
    "form feeds": lambda text: text.replace("\nfor", "\n\x0c\n\x0cfor").replace("\nmodel", "\n\x0cmodel").encode(),
    "lines": lambda text: text.replace("model(", "model(  # why\n\n  ").replace("backward()", "backward(\n)").encode(),
    "backslashes": lambda text: text.replace("loss = ", "loss \\\n = ").encode(),
    "text": lambda text: text.replace("model(", 'model("""\n  a\n""", ').encode(),
    "semicolons": lambda text: text.replace("optimizer.step()", "optimizer.step(); done = 1;").encode(),
}


def ran(text):
    """What a loop calls, in order."""
    recorded = Recorded()
    names = {"model": recorded, "optimizer": recorded, "batches": range(11), "contextlib": contextlib, "print": str}
    made = SimpleNamespace(DistributedDataParallel=lambda _: recorded)
    modules = {"torch": made, "torch.nn": made, "torch.nn.parallel": made}
    with unittest.mock.patch.dict(sys.modules, modules):
        exec(text, names)
    return recorded.calls


@settings(deadline=None)
@given(
    shape=st.sampled_from(sorted(LOOPS)),
    k=st.integers(1, 5),
    many=st.integers(1, 9),
    before=st.sampled_from(OTHER),
    after=st.sampled_from(OTHER),
    written=st.sampled_from(sorted(WRITTEN)),
)
def test_every_step_is_of_gradients_that_were_communicated_and_nothing_else_is(shape, k, many, before, after, written):
    """By running both: the same calls in the same order, and of the passes of a step only the last communicates."""
    text = WRITTEN[written](MADE + LOOPS[shape].format(k=k, many=many, before=before, after=after))
    line = 1 + len(re.findall(rb"\r\n?|\n", text[: text.index(b"backward(")]))
    source = Source(text)
    put_in_no_sync(source, line)
    calls, patched = ran(text), ran(source.data)
    assert [name for name, _ in patched] == [name for name, _ in calls]
    passes = [(name, syncs) for name, syncs in patched if name != "forward"]
    for (name, syncs), (following, _) in itertools.pairwise([*passes, ("end", True)]):
        if name == "backward":
            assert syncs == (following == "step")
    forwards = [syncs for name, syncs in patched if name == "forward"]
    assert forwards == [syncs for name, syncs in patched if name == "backward"]  # both inside, or both outside
