import tomllib

import pytest

from dptune import config
from dptune.errors import UsageError
from dptune.rule import Rule, Threshold


def rule(code, preview=False, thresholds=("worth_share",), name=""):
    return Rule(
        code,
        name or f"rule-{code[2:]}",
        "made",
        "time",
        "",
        "0.1",
        tuple(Threshold(n, 0.1, "") for n in thresholds),
        preview,
    )


RULES = [
    rule("DP101"),
    rule("DP102"),
    rule("DP501", thresholds=("warning_share", "error_share"), name="slow-loader"),
    rule("DP901", True),
]


def load(folder, text, name="pyproject.toml"):
    (folder / name).write_text(text, encoding="utf-8")
    return config.load(folder)


def runs(settings):
    return [one.code for one in RULES if settings.runs(one)]


def test_the_defaults_run_every_stable_rule(tmp_path):
    settings = config.load(tmp_path)
    assert settings == config.Settings()
    assert runs(settings) == ["DP101", "DP102", "DP501"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('select = ["DP1"]', ["DP101", "DP102"]),
        ('select = ["DP101", "DP5"]', ["DP101", "DP501"]),
        ('ignore = ["DP1"]', ["DP501"]),
        ('select = ["DP1"]\nignore = ["DP102"]', ["DP101"]),
        ('select = ["DP102"]\nignore = ["DP1"]', ["DP102"]),
        ('select = ["DP102"]\nignore = ["DP102"]', []),
        ("select = []", []),
        ("preview = true", ["DP101", "DP102", "DP501", "DP901"]),
        ('select = ["DP9"]', []),
        ('select = ["DP901"]', ["DP901"]),
    ],
)
def test_select_and_ignore(tmp_path, text, expected):
    assert runs(load(tmp_path, f"[tool.dptune]\n{text}\n")) == expected


def test_thresholds(tmp_path):
    settings = load(tmp_path, "[tool.dptune.rules.DP501]\nwarning_share = 0.1\nerror_share = 1\n")
    settings.check_against(RULES)
    assert settings.limits(RULES[2]) == {"warning_share": 0.1, "error_share": 1.0}
    assert settings.limits(RULES[0]) == {}


def test_the_nearest_file_above_counts(tmp_path):
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.dptune]\nignore = ["DP1"]\n')
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert config.load(inner).ignore == ("DP1",)
    (tmp_path / "project" / "pyproject.toml").write_text('[tool.dptune]\nignore = ["DP5"]\n')
    assert config.load(inner).ignore == ("DP5",)


def test_dptune_toml_has_the_keys_at_the_top_and_comes_first(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.dptune]\nignore = ["DP1"]\n')
    text = 'ignore = ["DP5"]\n[rules.DP101]\nworth_share = 0.3\n'
    settings = load(tmp_path, text, "dptune.toml")
    assert settings.ignore == ("DP5",)
    assert settings.limits(RULES[0]) == {"worth_share": 0.3}


def test_the_current_folder_is_where_it_starts(tmp_path, monkeypatch):
    (tmp_path / "dptune.toml").write_text("preview = true")
    monkeypatch.chdir(tmp_path)
    assert config.load().preview


def test_a_file_is_parsed_once_while_it_stays_as_it_is(tmp_path, monkeypatch):
    config._parsed.cache_clear()
    parsed, loads = [], tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: parsed.append(text) or loads(text))
    texts = ["preview = true", "preview = true", "preview = false"]
    assert [load(tmp_path, text, "dptune.toml").preview for text in texts] == [True, True, False]
    assert parsed == texts[1:]


def test_a_byte_order_mark_is_read_over(tmp_path):
    (tmp_path / "dptune.toml").write_bytes(b"\xef\xbb\xbfpreview = true\n")
    assert config.load(tmp_path).preview


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[tool.dptune]\nselct = ["DP1"]', "unknown key 'selct'", "did you mean 'select'?"),
        ("[tool.dptune]\nzzz = 1", "unknown key 'zzz'", "known: budget, cluster, ignore, preview, rules, select"),
        ('[tool.dptune]\nselect = "DP1"', "`select`", "'DP1'"),
        ("[tool.dptune]\npreview = 'perhaps'", "`preview`", "'perhaps'"),
        ('[tool.dptune.rules.DP101]\nworth_share = "much"', "`rules.DP101.worth_share`", "'much'"),
        ("[tool.dptune.rules.DP101]\nworth_share = nan", "`rules.DP101.worth_share`", "nan"),
        ('[tool.dptune]\nselect = "DP1"', "must be a list of rule codes", "'DP1'"),
        ("[tool.dptune]\nselect = [1]", "must be a list of rule codes", "1"),
        ('[tool.dptune]\npreview = "yes"', "`preview` must be true or false", "'yes'"),
        ("[tool.dptune]\npreview = 1", "`preview` must be true or false", "1"),
        (f"[tool.dptune]\npreview = {'9' * 4000}", "`preview` must be true or false", "9999"),
        (
            f"[tool.dptune]\npreview = 0x{'f' * 5000}",
            "`preview` must be true or false",
            "a number of thousands of digits",
        ),
        *(
            (f"[tool.dptune.rules.DP501]\nwarning_share = {value}", "must be a number, 0 or above", found)
            for value, found in (
                ("true", "true"),
                ('"0.1"', "'0.1'"),
                ("-0.1", "-0.1"),
                ("nan", "nan"),
                ("inf", "inf"),
            )
        ),
        ("[tool.dptune]\nrules = 1", "`rules` must be a table of rules", "1"),
        ("[tool.dptune.rules]\nDP501 = 1", "`rules.DP501` must be a table of thresholds", "1"),
        (f"x = {'[' * 20_000}", "is nested too deeply", "fix the file"),
        (f"[tool.dptune.rules.DP501]\nwarning_share = {'9' * 5000}", "a number of thousands of digits", "fix the file"),
        ("[tool.dptune.rules.DP501]\nwarning_share = 1e400", "must be a number, 0 or above", "found inf"),
        (f"[tool.dptune.budget]\nstep_ms = {'9' * 400}", "`budget.step_ms` must be a number, 0 or above", "9999"),
        ("[tool]\ndptune = 1", "`tool.dptune`", "1"),
        ("[tool.dptune.cluster]\nworker = 2", "unknown key 'cluster.worker'", "did you mean 'cluster.workers'?"),
        ("[tool.dptune.cluster]\nworkers = 0", "`cluster.workers` must be a whole number from 1 to 10000", "0"),
        ("[tool.dptune.cluster]\nrank_timeout_s = 0", "must be a number of seconds, above 0", "0"),
        ("[tool.dptune.cluster]\nslurm = 'cpu'", "`cluster.slurm` must be a table, for example slurm", "'cpu'"),
        ("[tool.dptune\n", "is not TOML", "fix the file"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path, text, message, hint):
    with pytest.raises(UsageError) as raised:
        load(tmp_path, text)
    assert str(tmp_path / "pyproject.toml") in raised.value.message
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_table_of_the_other_file_is_told_where_it_belongs(tmp_path):
    (tmp_path / "dptune.toml").write_text("[tool.dptune.budget]\nstep_ms = 3\n")
    with pytest.raises(UsageError) as raised:
        config.load(tmp_path)
    assert "dptune.toml: unknown key 'tool'" in raised.value.message
    assert raised.value.hint == "write [budget] there: [tool.dptune.budget] is for pyproject.toml"


@pytest.mark.parametrize("table", ["dptun", "dp-tune", "dptuen"])
def test_a_table_whose_name_is_nearly_right_is_told_of_once(tmp_path, capsys, table):
    assert load(tmp_path, f"[tool.{table}]\nselect = []") == load(tmp_path, f"[tool.{table}]\nselect = []")
    file = tmp_path / "pyproject.toml"
    told = f"dptune: warning: [tool.{table}] in {file} is ignored: did you mean [tool.dptune]?\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("text", ["[tool.tune]", "[tool.optuna]", "[tool.dptune]\n[tool.dptun]", "tool = 1"])
def test_tables_of_others_are_theirs(tmp_path, capsys, text):
    load(tmp_path, text)
    assert capsys.readouterr().err == ""


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "dptune.toml").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(UsageError, match="is not TOML"):
        config.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[tool.dptune]\nselect = ["DP103"]', "unknown rule 'DP103'", "did you mean 'DP10"),
        ('[tool.dptune]\nignore = ["dp101"]', "unknown rule 'dp101'", "did you mean 'DP101'?"),
        ('[tool.dptune]\nignore = ["dp1"]', "unknown rule 'dp1'", "did you mean 'DP1'?"),
        ("[tool.dptune.rules.dp501]\nwarning_share = 1", "unknown rule 'dp501'", "did you mean 'DP501'?"),
        ('[tool.dptune]\nselect = ["slow-loader"]', "'slow-loader' is the name of a rule, not its code", "use 'DP501'"),
        ('[tool.dptune]\nignore = ["slow-loader"]', "`ignore`", "use 'DP501'"),
        ("[tool.dptune.rules.slow-loader]\nwarning_share = 0.1", "`rules`", "use 'DP501'"),
        ('[tool.dptune]\nignore = [""]', "unknown rule ''", "known: DP101, DP102, DP501, DP901"),
        ("[tool.dptune.rules.DP511]\nwarning_share = 1", "unknown rule 'DP511'", "did you mean 'DP501'?"),
        (
            "[tool.dptune.rules.DP501]\nwarn_share = 1",
            "unknown threshold 'warn_share'",
            "did you mean 'warning_share'?",
        ),
        (
            "[tool.dptune.rules.DP501]\nwarning_share = 5",
            "`rules.DP501.warning_share`",
            "a tenth of a step is 0.10",
        ),
    ],
)
def test_codes_and_thresholds_are_checked_against_the_rules_there_are(tmp_path, text, message, hint):
    settings = load(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        settings.check_against(RULES)
    assert str(tmp_path / "pyproject.toml") in raised.value.message
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_what_is_there_passes(tmp_path):
    load(tmp_path, '[tool.dptune]\nselect = ["DP"]\nignore = ["DP9", "DP101"]').check_against(RULES)
