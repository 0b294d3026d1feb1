"""Which argument of which call an edit sets, and what it refuses."""

import inspect
import warnings

import pytest

from dptune.advice import Change
from dptune.knobs import KNOBS
from dptune.patch.argument import set_argument
from dptune.patch.source import EditError, Source

THEN = {
    "fsdp.reshard_after_forward": False,
    "loader.num_workers": 2,
    "loader.batch_size": 64,
    "loader.prefetch_factor": 4,
    "ddp.bucket_cap_mb": 1.0,
    "ddp.bucket_cap_mb_list": "1,8,25",
    "ddp.broadcast_buffers": False,
    "optimizer.fused": True,
    "optimizer.foreach": True,
    "optimizer.lr": 2e-4,
    "optimizer.betas": "0.6,0.996",
    "optimizer.eps": 5e-9,
}
WORKERS, BATCH, CAP, FUSED = "loader.num_workers", "loader.batch_size", "ddp.bucket_cap_mb", "optimizer.fused"
RESHARD = "fsdp.reshard_after_forward"
RATE, BETAS, EPS = "optimizer.lr", "optimizer.betas", "optimizer.eps"
MISSING = object()


def edit(text, knob=WORKERS, line=1, then=MISSING, now=None):
    asked = Change(knob=knob, now=now, then=THEN[knob] if then is MISSING else then)
    source = Source(text.encode())
    set_argument(source, line, asked)
    return source.data.decode()


@pytest.mark.parametrize(
    ("knob", "before", "after"),
    [
        (CAP, "m = DDP(Net(3))", "m = DDP(Net(3), bucket_cap_mb=1)"),
        (CAP, "m = DDP(net, bucket_cap_mb=25)  # ä", "m = DDP(net, bucket_cap_mb=1)  # ä"),
        (CAP, "m = {'ä': DDP(net, [0])}", "m = {'ä': DDP(net, [0], bucket_cap_mb=1)}"),
        (CAP, "m = DDP(\n    net,\n    # why\n)", "m = DDP(\n    net, bucket_cap_mb=1,\n    # why\n)"),
        ("ddp.bucket_cap_mb_list", "m = DDP(net)", "m = DDP(net, bucket_cap_mb_list=[1,8,25])"),
        ("ddp.broadcast_buffers", "m = DDP(net, None, None, 0, True)", "m = DDP(net, None, None, 0, False)"),
        (RESHARD, "fully_shard(block, mesh=mesh)", "fully_shard(block, mesh=mesh, reshard_after_forward=False)"),
        (WORKERS, "DataLoader(ds, batch_size=(bs // 2))", "DataLoader(ds, batch_size=(bs // 2), num_workers=2)"),
        (WORKERS, "DataLoader((ds))", "DataLoader((ds), num_workers=2)"),
        (WORKERS, "DataLoader(((ds)) )", "DataLoader(((ds)), num_workers=2 )"),
        (WORKERS, "DataLoader(ds, )", "DataLoader(ds, num_workers=2, )"),
        (WORKERS, "DataLoader(ds,num_workers=(1))", "DataLoader(ds,num_workers=(2))"),
        (
            WORKERS,
            "DataLoader(num_workers=(  # why\n1\n), dataset=ds)",
            "DataLoader(num_workers=(  # why\n2\n), dataset=ds)",
        ),
        (WORKERS, "DataLoader(ds  # (\n)", "DataLoader(ds, num_workers=2  # (\n)"),
        (WORKERS, "DataLoader(  # all, later\n)", "DataLoader(num_workers=2  # all, later\n)"),
        (
            WORKERS,
            "DataLoader(ds, name=')', x=','  # ,)\n ,)",
            "DataLoader(ds, name=')', x=',', num_workers=2  # ,)\n ,)",
        ),
        (WORKERS, "DataLoader(ds, **options, num_workers=4)", "DataLoader(ds, **options, num_workers=2)"),
        (WORKERS, "DataLoader(ds, 1, None, None, None, 8)", "DataLoader(ds, 1, None, None, None, 2)"),
        (BATCH, "DataLoader(ds, 32)", "DataLoader(ds, 64)"),
        (BATCH, "DataLoader(ds, (32), *rest)", "DataLoader(ds, (64), *rest)"),
        (BATCH, "DataLoader(ds, batch_size=n if x else 1)", "DataLoader(ds, batch_size=64)"),
        (BATCH, "DataLoader(ds, batch_sampler=None)", "DataLoader(ds, batch_sampler=None, batch_size=64)"),
        ("loader.prefetch_factor", "DataLoader(*these)", "DataLoader(*these, prefetch_factor=4)"),
        (FUSED, "AdamW(p for p in m.parameters())", "AdamW((p for p in m.parameters()), fused=True)"),
        (FUSED, "AdamW ( (p) for p in (ps)  # all\n)", "AdamW (( (p) for p in (ps)  # all\n), fused=True)"),
        (FUSED, "AdamW((p for p in ps))", "AdamW((p for p in ps), fused=True)"),
        (FUSED, "AdamW((p for p in ps), lr=1)", "AdamW((p for p in ps), lr=1, fused=True)"),
        (BETAS, "AdamW(ps, lr=1e-3)", "AdamW(ps, lr=1e-3, betas=(0.6, 0.996))"),
        (BETAS, "Adam(ps, 1e-3, [0.9, 0.999], 1e-8)", "Adam(ps, 1e-3, (0.6, 0.996), 1e-8)"),
        (EPS, "Adam(ps, 1e-3, [0.9, 0.999], 1e-8)", "Adam(ps, 1e-3, [0.9, 0.999], 5e-09)"),
        (FUSED, "SGD(ps, foreach=False)", "SGD(ps, foreach=False, fused=True)"),
    ],
)
def test_the_argument_is_set_and_nothing_else(knob, before, after):
    assert edit(f"{before}\n", knob) == f"{after}\n"
    assert edit(before.replace("\n", "\r\n"), knob) == after.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("t = Trainer(DataLoader(a), model)", "t = Trainer(DataLoader(a, num_workers=2), model)"),
        ("DataLoader(MyData(x)), len(y)", "DataLoader(MyData(x), num_workers=2), len(y)"),
        ("a = DataLoader(x); b = Other(y)", "a = DataLoader(x, num_workers=2); b = Other(y)"),
        ("l = [DataLoader(d) for d in ds]", "l = [DataLoader(d, num_workers=2) for d in ds]"),
        ("l = lambda ds: DataLoader(ds)", "l = lambda ds: DataLoader(ds, num_workers=2)"),
        ("import torch; torch.utils.data.DataLoader(d)", "import torch; torch.utils.data.DataLoader(d, num_workers=2)"),
        ("(torch.utils.data.DataLoader)(d)", "(torch.utils.data.DataLoader)(d, num_workers=2)"),
        (
            "from torch.utils.data import DataLoader as D; D(x)",
            "from torch.utils.data import DataLoader as D; D(x, num_workers=2)",
        ),
        (
            "import torch.utils.data as t; t.DataLoader(x)",
            "import torch.utils.data as t; t.DataLoader(x, num_workers=2)",
        ),
        (
            "from torch.utils import data; data.DataLoader(x)\nfor data in l: pass",
            "from torch.utils import data; data.DataLoader(x, num_workers=2)\nfor data in l: pass",
        ),
        ("from common import *; DataLoader(x)", "from common import *; DataLoader(x, num_workers=2)"),
        # what a name means in another scope does not matter
        ("DataLoader(x)\ndef f(DataLoader): pass", "DataLoader(x, num_workers=2)\ndef f(DataLoader): pass"),
        ("DataLoader(x)\nclass A:\n DataLoader = 1", "DataLoader(x, num_workers=2)\nclass A:\n DataLoader = 1"),
        (
            "from torch.utils.data import DataLoader; DataLoader(x)\ndef f(): from monai.data import DataLoader",
            "from torch.utils.data import DataLoader; DataLoader(x, num_workers=2)\n"
            "def f(): from monai.data import DataLoader",
        ),
    ],
)
def test_the_call_is_picked_by_what_it_makes(before, after):
    assert edit(before) == after


@pytest.mark.parametrize("line", [2, 5])
def test_a_call_is_found_by_its_first_line_and_by_that_of_its_name(line):
    """Python records the one or the other, by how the call is written."""
    text = "l = (\n  torch\n    .utils\n   .data\n .DataLoader(\n    ds\n  )\n)\n"
    assert edit(text, line=line) == text.replace("    ds\n", "    ds, num_workers=2\n")


NO_CALL = "line 1 has no call to torch's DataLoader: the object may be created elsewhere"
BY_HAND = "cannot be edited safely: set it by hand"


@pytest.mark.parametrize(
    ("knob", "text", "why"),
    [
        (WORKERS, "l, v = DataLoader(train), DataLoader(val)", "line 1 has 2 calls to DataLoader"),
        (WORKERS, "l = DataLoader(DataLoader(x))", "line 1 has 2 calls to DataLoader"),
        (WORKERS, "make = functools.partial(DataLoader, ds)", NO_CALL),
        (WORKERS, "l = functools.partial(DataLoader, ds)()", NO_CALL),
        (WORKERS, "l = make(ds)", NO_CALL),
        (WORKERS, "l = make().DataLoader(ds)", NO_CALL),
        (WORKERS, "l = self.DataLoader(ds)", NO_CALL),
        (WORKERS, "super().__init__(ds)", NO_CALL),
        (WORKERS, "from monai.data import DataLoader; DataLoader(ds)", NO_CALL),
        (WORKERS, "from .data import DataLoader; DataLoader(ds)", NO_CALL),
        (WORKERS, "from .torch import DataLoader; DataLoader(ds)", NO_CALL),
        (WORKERS, "import fast.data as torch; torch.DataLoader(ds)", NO_CALL),
        (WORKERS, "DataLoader(ds)\nclass DataLoader(Base): pass", NO_CALL),
        (WORKERS, "f = lambda DataLoader: DataLoader(ds)", NO_CALL),
        (WORKERS, "l = [DataLoader(ds) for DataLoader in these]", NO_CALL),
        (WORKERS, "while 1: DataLoader(ds); DataLoader = lazy(DataLoader)", NO_CALL),
        (WORKERS, "def f(): DataLoader(ds)\nfrom monai.data import DataLoader", NO_CALL),
        (WORKERS, "DataLoader(ds)\ndef f(): global DataLoader; DataLoader = 1", NO_CALL),
        (
            WORKERS,
            "DataLoader(a)\ntry: from x import DataLoader\nexcept E: from torch.utils.data import DataLoader",
            NO_CALL,
        ),
        (WORKERS, "\\\n\\\nDataLoader(ds)", NO_CALL),
        (FUSED, "o = Rprop(ps)", "no call to torch's Adagrad, Adam, AdamW or SGD: the object"),
        (BETAS, "o = SGD(ps)", "no call to torch's Adam, AdamW, Adamax, NAdam, RAdam or SparseAdam: the object"),
        (FUSED, "from bitsandbytes.optim import AdamW; AdamW(ps)", "no call to torch's Adagrad, Adam, AdamW or SGD"),
        (WORKERS, "DataLoader(ds, **options)", "takes its arguments from a dictionary"),
        (WORKERS, "DataLoader(*these)", "takes its arguments from a sequence"),
        (BATCH, "DataLoader(ds, *rest)", "takes its arguments from a sequence"),
        (CAP, "DDP(net, [0], 0, 0, True, True, group)", "pass them by keyword"),
        ("optimizer.foreach", "Adadelta(ps, 1, 2, 3, 4, False)", "pass them by keyword"),
        (BATCH, "DataLoader(ds, batch_sampler=s)", "torch rejects batch_size together with batch_sampler"),
        (FUSED, "AdamW(ps, foreach=True)", "torch rejects fused together with foreach"),
        (BATCH, "DataLoader(ds, batch_size=(n := 4)); print(n)", "the expression for batch_size has side effects"),
        (BATCH, "DataLoader(ds, 64)", "the script already sets this value"),
    ],
)
def test_what_could_go_wrong_is_refused_in_a_sentence(knob, text, why):
    with pytest.raises(EditError) as refused:
        edit(f"{text}\n", knob)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("knob", "now", "text", "why"),
    [
        (WORKERS, 4, "DataLoader(ds, num_workers=8)", "it is 8 in the script, but was 4 in the run: has"),
        (WORKERS, 4, "DataLoader(ds)", "it is 0 in the script, but was 4 in the run"),
        (BATCH, 4, "DataLoader(ds, 8)", "it is 8 in the script, but was 4 in the run"),
        (CAP, 25.0, "DDP(net, bucket_cap_mb=100)", "it is 100 in the script, but was 25.0 in the run"),
        (RATE, 1e-4, "SGD(ps, lr=1e-3)", "it is 0.001 in the script, but was 0.0001 in the run"),
        (BETAS, "0.9,0.95", "Adam(ps, betas=(0.9, 0.999))", "it is (0.9, 0.999) in the script, but was 0.9,0.95 in"),
        (BETAS, "0.9,0.95", "Adam(ps)", "it is 0.9,0.999 in the script, but was 0.9,0.95 in the run"),
        (EPS, 1e-6, "Adam(ps)", "it is 1e-08 in the script, but was 1e-06 in the run"),
    ],
)
def test_a_file_that_contradicts_the_run_is_refused(knob, now, text, why):
    with pytest.raises(EditError, match="has the file changed since") as refused:
        edit(text, knob, now=now)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("knob", "now", "text"),
    [
        (WORKERS, 0, "DataLoader(ds)"),
        (WORKERS, 4, "DataLoader(ds, num_workers=args.workers)"),
        (BETAS, "0.9,0.95", "Adam(ps, betas=(0.90, 0.95))"),
        (BETAS, "0.9,0.95", "Adam(ps, betas=args.betas)"),
        (CAP, 25.0, "DDP(net)"),
        (CAP, 0.333, "DDP(net, bucket_cap_mb=0.3333)"),
        (CAP, 25.0, "DDP(net, bucket_cap_mb=None)"),
    ],
)
def test_a_file_that_may_be_the_one_that_ran_is_edited(knob, now, text):
    assert edit(text, knob, now=now) != text


@pytest.mark.parametrize(
    ("knob", "then", "written"),
    [
        (CAP, None, "None"),
        (CAP, 1.5, "1.5"),
        ("ddp.bucket_cap_mb_list", None, "None"),
        ("ddp.bucket_cap_mb_list", "1,8", "[1,8]"),
    ],
)
def test_how_a_value_is_written(knob, then, written):
    assert edit("DDP(net)", knob, then=then) == f"DDP(net, {KNOBS[knob].argument}={written})"


@pytest.mark.parametrize(
    ("knob", "then"),
    [
        ("ddp.broadcast_buffers", None),
        ("ddp.bucket_cap_mb_list", "1], device_ids=[0"),
        ("ddp.bucket_cap_mb_list", "1],[2"),
        ("ddp.bucket_cap_mb_list", "print(1)"),
    ],
)
def test_a_value_that_cannot_be_written_is_refused(knob, then):
    with pytest.raises(EditError, match="cannot be"):
        edit("DDP(net)", knob, then=then)


def test_an_edit_is_checked_before_it_is_given_out(monkeypatch):
    """Whatever the text says: only a program that differs in the one argument comes out."""
    for wrong in (
        "DataLoader(ds, num_workers=2",
        "DataLoader(ds, num_workers=3)",
        "DataLoader(num_workers=2)",
        "\0",
        "\ud800",
    ):
        monkeypatch.setattr("dptune.patch.source.Source._spliced", lambda *_, wrong=wrong: wrong)
        with pytest.raises(EditError, match=BY_HAND):
            edit("DataLoader(ds)")


def test_a_call_inside_an_f_string_is_edited_right_or_not_at_all():
    for text in (
        "f'{DataLoader(ds)}'",
        "f'''é\n{DataLoader(ds)}'''",
        "f'é{x!r:>{DataLoader(ds)}}'",
        "f'{(DataLoader(ds))=}'",
    ):
        for line in (1, 2):
            try:
                after = edit(text, line=line)
            except EditError:
                continue
            assert after == text.replace("(ds)", "(ds, num_workers=2)")


def test_nesting_too_deep_for_python_is_refused():
    for text in ("(" * 5000 + ")" * 5000, "-" * 20_000 + "1", "x" + ".a" * 20_000 + "; DataLoader(ds)"):
        with pytest.raises(EditError):
            edit(text)


def test_warnings_of_the_script_are_not_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert edit(r"DataLoader('\d')") == r"DataLoader('\d', num_workers=2)"


@pytest.mark.long
def test_positions_and_names_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="its signatures are asked")
    found = {"ddp": torch.nn.parallel, "loader": torch.utils.data, "optimizer": torch.optim}
    found["fsdp"] = pytest.importorskip("torch.distributed.fsdp")
    for name, knob in KNOBS.items():
        if not knob.argument:
            continue
        for made in knob.classes:
            signature = inspect.signature(getattr(found[name.partition(".")[0]], made))
            if knob.argument not in signature.parameters:
                assert torch.__version__ < "2.13", name  # newer than this torch
                continue
            parameter = signature.parameters[knob.argument]
            if parameter.kind is not parameter.KEYWORD_ONLY:
                assert list(signature.parameters).index(knob.argument) in knob.positions, (name, made)


def test_every_argument_that_torch_takes_by_name_only_may_follow_any_others():
    names = {name for name, knob in KNOBS.items() if knob.argument and not knob.positions}
    assert names == {"loader.prefetch_factor", "loader.persistent_workers", "optimizer.fused", RESHARD}
