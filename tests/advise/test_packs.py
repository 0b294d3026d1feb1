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


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("def broken(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("RULE = 'ACME001'\n", "RULE is not a dptune.Rule"),
        (RULE.format(code="acme-1", name="x"), "'acme-1' is not a rule code"),
        (RULE.format(code="ACME001", name="x").partition("def")[0], "it has no check"),
    ],
)
def test_a_broken_module_is_named_and_the_others_are_there(install_pack, text, named):
    install_pack(
        "acme",
        {"acme/__init__.py": "", "acme/bad.py": text, "acme/good.py": RULE.format(code="ACME009", name="good")},
    )
    (problem,) = packs.problems()
    assert "acme.bad" in problem
    assert named in problem
    assert codes()[:3] == ["ACME009", "DP101", "DP102"]


def test_a_pack_that_is_not_there_is_named(install_pack):
    install_pack("gone", {}, entry="gone_package")
    (problem,) = packs.problems()
    assert "'gone'" in problem
    assert "gone_package" in problem
    assert "DP101" in codes()


def test_of_two_rules_with_one_code_ours_is_kept_and_the_other_named(install_pack):
    install_pack("aaa", {"aaa.py": RULE.format(code="DP101", name="mine")})
    assert packs.find_rule("DP101").module.startswith("dptune_rules")
    (problem,) = packs.problems()
    assert "aaa" in problem
    assert "DP101" in problem


def test_a_rule_is_found_by_code_or_name_in_any_case():
    assert packs.find_rule("dp501") == packs.find_rule("Loader-Starves-Step") == packs.find_rule("DP501")


@pytest.mark.parametrize(("asked", "meant"), [("DP5011", "DP501"), ("no-sync", "no-sync-missing")])
def test_an_unknown_rule_names_the_nearest(asked, meant):
    with pytest.raises(UsageError) as raised:
        packs.find_rule(asked)
    assert asked in raised.value.message
    assert raised.value.hint == f"did you mean '{meant}'?"


def test_a_rule_like_no_other_names_them_all():
    with pytest.raises(UsageError) as raised:
        packs.find_rule("zzzzzzzz")
    assert "DP101, DP102" in raised.value.hint
