from importlib.metadata import Distribution

import pytest

from dptune.advise import packs
from dptune.errors import UsageError

RULE = '''"""A rule."""
from dptune.rule import Rule

RULE = Rule(code="{code}", name="{name}", family="f", kind="risk", summary="s", since="1.0")


def check(run):
    yield from ()
'''


def codes():
    return [loaded.rule.code for loaded in packs.load_packs()]


def test_our_rules_are_a_pack_like_any_other():
    assert codes() == sorted(codes())
    assert codes()[:3] == ["DP101", "DP102", "DP103"]
    assert packs.problems() == []
    assert packs.load_packs()[0].doc.startswith("Gradient buckets")
    assert packs.load_packs()[0].pack.startswith("dptune ")


def test_a_pack_of_someone_else_is_walked_down_to_its_folders(install_pack):
    install_pack(
        "acme",
        {
            "acme/__init__.py": "",
            "acme/words.py": "NOT_A_RULE = 1\n",
            "acme/first.py": RULE.format(code="ACME001", name="first"),
            "acme/deep/__init__.py": "",
            "acme/deep/er/__init__.py": RULE.format(code="ACME002", name="second"),
        },
    )
    assert [code for code in codes() if code.startswith("ACME")] == ["ACME001", "ACME002"]
    found = packs.find_rule("acme002")
    assert (found.module, found.pack, found.doc) == ("acme.deep.er", "acme 1.0", "A rule.")
    assert packs.problems() == []


def test_a_pack_may_be_one_module(install_pack):
    install_pack("single", {"single.py": RULE.format(code="ONE001", name="one")})
    assert "ONE001" in codes()


def rule(after="", **changed):
    """A module with the rule ACME001, with parts of RULE changed to what is not what they should be."""
    parts = {part: repr(text) for part, text in DECLARED.items()} | changed
    arguments = ", ".join(f"{part}={text}" for part, text in parts.items())
    head = '"""A rule."""\nfrom dptune.rule import Rule, Threshold\n'
    return f"{head}RULE = Rule({arguments})\ndef check(run):\n    yield from ()\n{after}"


DECLARED = {"code": "ACME001", "name": "first", "family": "f", "kind": "risk", "summary": "s", "since": "1.0"}
ODD_THRESHOLDS = [
    ("None", "RULE.thresholds is not a tuple of Threshold"),
    ("{}", "RULE.thresholds is not a tuple of Threshold"),
    ("['share']", "RULE.thresholds is not a tuple of Threshold"),
    ("('share',)", "RULE.thresholds is not a tuple of Threshold"),
    ("(Threshold(None, 0.1, 'why'),)", "Threshold.name is not text but of type NoneType"),
    ("(Threshold('share', 0.1, 5),)", "Threshold.reason is not text but of type int"),
    ("(Threshold('share', '0.1', 'why'),)", "the default of its threshold 'share' is not a finite number"),
    ("(Threshold('share', True, 'why'),)", "the default of its threshold 'share' is not a finite number"),
    ("(Threshold('share', float('nan'), 'why'),)", "the default of its threshold 'share' is not a finite number"),
    ("(Threshold('share', 0.1, 'why'),) * 2", "2 of its thresholds are called 'share'"),
]
WORDLESS = "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E\n"


BROKEN = [
    ("import not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    ("def broken(:\n", "SyntaxError"),
    ("raise SystemExit(3)\n", "SystemExit: 3"),
    (WORDLESS, "acme.odd is left out: E"),
    ("RULE = 'ACME001'\n", "RULE is not a dptune.Rule"),
    ("RULES = ['ACME001']\n", "it has RULES and no RULE: one module is one rule"),
    ("def check(run): ...\n", "it has check(run) and no RULE"),
    ("def __getattr__(name): raise RuntimeError(name)\n", "RuntimeError: "),
    (rule("class Sub(Rule): pass\nRULE = Sub(**vars(RULE))\n"), "RULE is not a dptune.Rule"),
    (rule("del check\n"), "it has no check"),
    (rule("__doc__ = 5\n"), "its docstring is not text"),
    (rule("__path__ = 'acme'\n"), "its __path__ is not a list of folders"),
    (rule("__path__ = None\n"), "its __path__ is not a list of folders"),
    (rule("__path__ = [1, 2]\n"), "its __path__ is not a list of folders"),
    (rule("__path__ = 3\n"), "TypeError: 'int' object is not iterable"),
    *((rule(**{part: "None"}), f"RULE.{part} is not text but of type NoneType") for part in DECLARED if part != "kind"),
    (rule(code="5"), "RULE.code is not text but of type int"),
    (rule(code="'acme-1'"), "'acme-1' is not a rule code"),
    (rule(code="'ACME001\\n'"), "is not a rule code"),
    (rule(code="'DP999'"), "'DP999' is a code of dptune's own rules"),
    (rule(name="'A rule'"), "'A rule' is not the name of a rule"),
    (rule(kind="'speed'"), "RULE.kind is none of time, risk, convergence"),
    (rule(kind="[]"), "RULE.kind is none of time, risk, convergence"),
    (rule(preview="'yes'"), "RULE.preview is neither True nor False"),
    (rule(needs="'a GPU'"), "RULE.needs is neither '' nor 'recording'"),
    (rule(needs="[]"), "RULE.needs is neither '' nor 'recording'"),
    *((rule(thresholds=thresholds), named) for thresholds, named in ODD_THRESHOLDS),
    (rule(name="'good'", code="'ACME002'"), "is rule good already"),
    (rule(name="'loader-starves-step'"), "is rule loader-starves-step already"),
    (rule(name="'acme009'"), "is rule acme009 already"),
    (rule(code="'ACME009'"), "is rule ACME009 already"),
]


def test_broken_modules_are_named_and_the_others_are_there(install_pack):
    """All in one pack, which is looked through once."""
    good = {"acme/__init__.py": "", "acme/good.py": RULE.format(code="ACME009", name="good")}
    broken = {f"acme/odd_{place}.py": text for place, (text, _) in enumerate(BROKEN)}
    install_pack("acme", {**good, **broken})
    found = packs.survey()
    assert len(found.problems) == len(BROKEN) > 40
    for place, (text, named) in enumerate(BROKEN):
        (problem,) = [problem for problem in found.problems if f"acme.odd_{place} " in problem]
        assert named in problem.replace(f"odd_{place}", "odd"), text
    assert [loaded.rule.code for loaded in found.rules][:3] == ["ACME009", "DP101", "DP102"]


def test_a_pack_that_is_not_there_is_named(install_pack):
    install_pack("gone", {}, entry="gone_package")
    (problem,) = packs.problems()
    assert "'gone'" in problem
    assert "gone_package" in problem
    assert "DP101" in codes()


def test_an_entry_point_that_names_something_in_a_module_is_named(install_pack):
    install_pack("acme", {"acme.py": RULE.format(code="ACME001", name="one")}, entry="acme:RULE")
    assert packs.problems() == [
        "rule pack 'acme' (acme 1.0) is left out: 'acme:RULE' is not the name of a module or package"
    ]
    assert "DP101" in codes()


def test_no_code_of_ours_is_given_to_another_pack(install_pack):
    install_pack("aaa", {"aaa.py": RULE.format(code="DP101", name="mine")})
    assert packs.find_rule("DP101").module.startswith("dptune_rules")
    (problem,) = packs.problems()
    assert (
        problem
        == "aaa (aaa 1.0) is left out: 'DP101' is a code of dptune's own rules: begin it with other letters than DP"
    )


def test_the_program_of_a_package_is_not_run(install_pack):
    files = {"acme/__init__.py": RULE.format(code="ACME001", name="one"), "acme/__main__.py": "raise SystemExit(3)\n"}
    install_pack("acme", files)
    assert packs.problems() == []
    assert "ACME001" in codes()


@pytest.mark.parametrize("points", [b"[dptune.rules]\nacme\n", b"\xff\xfe"])
def test_entry_points_that_cannot_be_read_are_named_and_the_others_are_there(install_pack, tmp_path, points):
    install_pack("acme", {"acme.py": RULE.format(code="ACME001", name="one")})
    install_pack("bad", {})
    (tmp_path / "bad" / "bad-1.0.dist-info" / "entry_points.txt").write_bytes(points)
    (problem,) = packs.problems()
    assert problem.startswith("the entry points of bad 1.0 are left out: ")
    assert codes()[:2] == ["ACME001", "DP101"]


@pytest.mark.parametrize("metadata", [b"", b"Name: \xff\n"])
def test_a_pack_without_metadata_goes_by_the_name_of_its_entry_point(install_pack, tmp_path, metadata):
    install_pack("acme", {"acme.py": RULE.format(code="ACME001", name="one")}, entry="acme")
    (tmp_path / "acme" / "acme-1.0.dist-info" / "METADATA").write_bytes(metadata)
    assert packs.find_rule("ACME001").pack == "acme"


def test_the_metadata_of_a_pack_are_parsed_once(monkeypatch):
    """They hold the README: parsing them takes longer than asking a rule."""
    parsed, ask = [], Distribution.metadata.fget
    monkeypatch.setattr(Distribution, "metadata", property(lambda self: parsed.append(self) or ask(self)))
    assert packs.problems() == []
    assert len(parsed) == 1


def test_a_rule_is_found_by_code_or_name_in_any_case():
    assert packs.find_rule("dp501") == packs.find_rule("Loader-Starves-Step") == packs.find_rule("DP501")


@pytest.mark.parametrize(("asked", "meant"), [("DP9011", "DP901"), ("no-sync", "no-sync-missing")])
def test_an_unknown_rule_names_the_nearest(asked, meant):
    with pytest.raises(UsageError) as raised:
        packs.find_rule(asked)
    assert asked in raised.value.message
    assert raised.value.hint == f"did you mean '{meant}'?"


def test_a_rule_like_no_other_names_the_list():
    with pytest.raises(UsageError, match="unknown rule") as raised:
        packs.find_rule("zzzzzzzz")
    assert raised.value.hint.startswith("`dptune rules list`")


def test_a_rule_that_is_left_out_is_told_with_why_where_it_is_asked_for(install_pack):
    install_pack("acme", {"acme.py": "raise OSError('no licence')\n"})
    with pytest.raises(UsageError) as raised:
        packs.find_rule("ACME001")
    assert raised.value.hint.endswith(
        " Packs that did not load: rule pack 'acme' (acme 1.0): acme is left out: OSError: no licence"
    )
