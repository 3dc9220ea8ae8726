"""The issue's list of bad input, row by row through the command: one sentence, exit code 2, nothing written."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.cli.main import main
from tests.cli.harness import N, changed, coterie, files, table

BINOMIAL = ["--formula", "passed ~ hours", "--family", "binomial"]
POISSON = ["--formula", "visits ~ hours", "--family", "poisson"]


def formula(text):
    return ["--formula", text]


CASES = [
    # id, table, arguments that replace or add to the usual ones, what the sentence holds
    ("formula twice", table(), [*formula("score ~ 1"), *formula("score ~ day")], ["--formula is given 2 times"]),
    ("seed twice", table(), ["--seed", "1", "--seed", "1"], ["--seed is given 2 times"]),
    ("client column", table(), ["--client", "schol"], ["client column 'schol'", "Did you mean 'school'"]),
    ("cluster column", table(), ["--cluster", "sectr"], ["cluster column 'sectr'", "Did you mean 'sector'"]),
    ("offset column", table(), ["--offset", "hour"], ["offset column 'hour'", "'hours'"]),
    ("weights column", table(), ["--weights", "w"], ["weights column 'w' is not in the table"]),
    ("order column", table(), ["--order-by", "dya"], ["'dya' is not in the table", "Did you mean 'day'"]),
    ("split column", table(), ["--split-by", "dya"], ["'dya' is not in the table", "Did you mean 'day'"]),
    ("shared term", table(), ["--shared", "hour"], ["no term 'hour' to share", "Did you mean 'hours'"]),
    ("formula's column", table(), formula("score ~ houres"), ["'houres', which is not a column", "'hours'"]),
    ("outcome's column", table(), formula("scor ~ hours"), ["'scor'", "Did you mean 'score'"]),
    ("function", table(), formula("score ~ logg(hours)"), ["calls 'logg'", "'log'"]),
    ("no tilde", table(), formula("score"), ["one outcome and one '~'"]),
    ("syntax", table(), formula("score ~ hours +"), ["cannot be read"]),
    ("empty formula", table(), formula(""), ["formula is empty"]),
    ("lme4's bar", table(), formula("score ~ hours + (1 | school)"), ["'|'", "client"]),
    ("no labels", table(**changed("school", [2, 5], None)), [], ["'school' has no label in 2 rows (data rows 2, 5)"]),
    ("no cluster", table(**changed("sector", [3], None)), ["--cluster", "sector"], ["'sector' has no label", "row 3"]),
    ("missing", table(**changed("hours", [1, 4, 9], np.nan)), [], ["'hours' has missing", "(data rows 1, 4, 9)"]),
    ("many missing", table(**changed("hours", range(1, 8), None)), [], ["(data rows 1, 2, 3, 4, 5, ...)", "--missing"]),
    ("infinite", table(**changed("hours", [6], np.inf)), [], ["'hours' has infinite values in 1 row (data row 6)"]),
    ("not a number", table(**changed("hours", [7], "many")), [], ["'hours' has values that are", "7): 'many'"]),
    ("outcome missing", table(**changed("score", [6], None)), [], ["'score' has missing values in 1 row (data row 6)"]),
    ("outcome is text", table(**changed("score", [6], "?")), [], ["'score' has values that are", "6): '?'"]),
    ("all missing", table(hours=None, extra=[None] * N), formula("score ~ extra"), ["'extra'", "60 rows"]),
    ("all left out", table(hours=[None] * N), ["--missing", "drop"], ["No row is left", "'hours'"]),
    ("missing what", table(), ["--missing", "ignore"], ["missing must be 'error' or 'drop', not 'ignore'"]),
    ("constant", table(score=3.0), [], ["'score' is constant: 3 in every row"]),
    ("constant 0", table(passed=0), BINOMIAL, ["'passed' is constant: 0"]),
    ("not 0 or 1", table(), [*formula("visits ~ hours"), "--family", "binomial"], ["0 and 1", "'visits' has 2, 3"]),
    ("halves", table(**changed("passed", [3], 0.5)), BINOMIAL, ["'passed' has 0.5 in 1 row (data row 3)"]),
    ("three words", table(), [*formula("level ~ hours"), "--family", "binomial"], ["'level' is text with 3"]),
    ("text", table(), formula("sector ~ hours"), ["'sector' is text ('land' and 'town')", "Use family binomial"]),
    ("negative", table(**changed("visits", [4], -1)), POISSON, ["counts", "'visits' has -1 in 1 row (data row 4)"]),
    ("no counts", table(), [*formula("score ~ hours"), "--family", "poisson"], ["counts (0, 1, 2, ...)", "'score'"]),
    ("family", table(), ["--family", "binomal"], ["no family 'binomal'; use gaussian, ", "Did you mean 'binomial'"]),
    ("method", table(), ["--method", "pool"], ["There is no method 'pool'. ", "Did you mean 'pooled'"]),
    ("covariance", table(), ["--covariance", "diag"], ["covariance must be auto, ", "'diagonal'"]),
    ("cluster variance", table(), ["--cluster-variance", "each"], ["cluster_variance must be common or own"]),
    ("residual", table(), ["--residual", "client"], ["residual must be common or by-client", "'by-client'"]),
    ("residual of counts", table(), [*POISSON, "--residual", "by-client"], ["poisson family has no residual variance"]),
    ("two clusters", table(**changed("sector", [4, 15], "moor")), ["--cluster", "sector"],
     ["2 of 6 labels of 'school' are in more than one 'sector'", "ash in moor, town", "birch in moor, town"]),
    ("coarse first", table(region="all", part=np.repeat(["a", "b", "c"], 20)), ["--cluster", "sector", "--cluster",
     "part"], ["labels of 'sector' are in more than one 'part'"]),
    ("cluster twice", table(), ["--cluster", "sector", "--cluster", "sector"], ["'sector' is named twice"]),
    ("client is cluster", table(), ["--cluster", "school"], ["'school' is both the client and a cluster"]),
    ("client in formula", table(), formula("score ~ hours + school"), ["'school' is the client column"]),
    ("client is outcome", table(), ["--client", "score"], ["'score' is the outcome"]),
    ("one client", table(school="only"), [], ["only one client: 'school' is only in every row"]),
    ("one row each", table(school=np.arange(N)), ["--method", "hierarchical"], ["has one row", "--method pooled"]),
    ("no clusters", table(), ["--method", "clusterwise"], ["'clusterwise' needs clusters", "--cluster"]),
    ("collinear", table(twice=2 * table()["hours"]), formula("score ~ hours + twice"), ["'hours'", "'twice'"]),
    ("same column", table(), formula("score ~ hours + I(hours * 2)"), ["hours"]),
    ("many columns", pd.DataFrame({"school": np.arange(9) // 3, "score": np.arange(9.0), "c": list("abcdefghi"),
     "d": list("cdeabihfg")}), formula("score ~ c + d"), ["9 rows", "17"]),
    ("negative weight", table(w=[-1.0] + [1.0] * (N - 1)), ["--weights", "w"], ["'w' is negative", "(data row 1)"]),
    ("zero weights", table(w=0), ["--weights", "w"], ["'w' is 0 in every row"]),
    ("a client weighs", table(w=[1] * 9 + [0] * 51), ["--weights", "w"], ["'school' is ash in every row that"]),
    ("text weights", table(), ["--weights", "level"], ["weights column 'level' must hold numbers"]),
    ("text offset", table(), ["--offset", "level"], ["offset column 'level' must hold numbers"]),
    ("no share", table(), ["--test-fraction", "0"], ["test_fraction must be a number between 0 and 1, not 0"]),
    ("whole share", table(), ["--test-fraction", "1"], ["test_fraction must be a number between 0 and 1, not 1"]),
    ("large share", table(), ["--test-fraction", "2", "--splits", "0"], ["between 0 and 1, not 2"]),
    ("splits", table(), ["--splits", "-1"], ["splits must be a whole number from 0, not -1"]),
    ("order missing", table(**changed("day", [7, 9], None)), ["--order-by", "day"], ["'day'", "(data rows 7, 9)"]),
    ("group missing", table(**changed("day", [7], None)), ["--split-by", "day"], ["'day'", "1 row (data row 7)"]),
    ("order and group", table(), ["--split-by", "day", "--order-by", "visits"], ["by order or by groups, not both"]),
    ("split by client", table(), ["--split-by", "school"], ["split by 'school': each client (school) has one group"]),
    ("split by cluster", table(), ["--split-by", "sector"], ["split by 'sector': each client (school) has one group"]),
    ("gamma text", table(), ["--gamma", "1,x"], ["--gamma takes a number", "'1,x'"]),
    ("gamma negative", table(), ["--gamma", "-1"], ["gamma must be one number that is not negative", "not -1."]),
    ("dates as text", table(hours=[f"{i % 28 + 1:02d}.01.2024" for i in range(N)]), [],
     ["'hours' holds dates, which a formula cannot use"]),
    ("backticks, outcome", table(**{"score-1": 1.0, "log.x": 2.0}), formula("score-1 ~ log.x"),
     ["Column 'score-1' has signs in its name", "`score-1`"]),
    ("backticks, column", table(**{"h-x": 1.0}), formula("score ~ h-x"), ["Column 'h-x' has signs", "`h-x`"]),
    ("gamma missing", table(), ["--method", "given-strengths"], ["needs strengths", "gamma"]),
    ("alpha large", table(), ["--cluster", "sector", "--gamma", "1", "--alpha", "2"], ["alpha must lie between 0"]),
    ("alpha alone", table(), ["--cluster", "sector", "--alpha", "0.5"], ["alpha needs gamma too"]),
    ("lam and alpha", table(), ["--cluster", "sector", "--gamma", "1", "--lam", "1", "--alpha", "1"], ["not both"]),
    ("lam, no clusters", table(), ["--gamma", "1", "--lam", "1"], ["lam ties clusters", "cluster column"]),
    ("rounds' name", table(), ["--method", "async-l2gd", "--rounds", "stps=1"], ["no option 'stps'", "'steps'"]),
    ("rounds, no value", table(), ["--method", "async-l2gd", "--rounds", "steps"], ["takes NAME=VALUE", "'steps'"]),
    ("rounds twice", table(), ["--method", "async-l2gd", "--rounds", "p0=0", "--rounds", "p0=1"], ["gives p0 twice"]),
    ("rounds of nothing", table(), ["--rounds", "steps=10"], ["rounds are options of", "name one as the method"]),
    ("rounds' step", table(), ["--method", "async-l2gd", "--gamma", "1", "--rounds", "eta=-9"], ["eta of rounds must"]),
    ("rounds' p0", table(), ["--method", "async-l2gd", "--gamma", "1", "--rounds", "p0=1.2"], ["p0 of rounds must be"]),
    ("rounds' p", table(), ["--method", "async-l2gd", "--cluster", "sector", "--gamma", "1", "--rounds", "p0=0.1",
     "--rounds", "p=0.1,0.2,0.3"], ["p of rounds must be one number, or 2: one for each cluster, not 3"]),
    ("rounds' rho", table(), ["--method", "async-al2sgd", "--gamma", "1", "--rounds", "rho=0"], ["rho of rounds must"]),
    ("grid, no splits", table(), ["--gamma", "1,2", "--splits", "0"], ["grid", "at least one split"]),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(file, *arguments):
    usual = {"--formula": "score ~ hours", "--client": "school", "--out": "model"}
    return coterie("fit", file, *(v for pair in usual.items() if pair[0] not in arguments for v in pair), *arguments)


@pytest.mark.parametrize(("df", "arguments", "fragments"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_table_or_option(folder, df, arguments, fragments):
    df.to_csv("table.csv", index=False)
    message = fit("table.csv", *arguments).message
    for fragment in fragments:
        assert fragment in message
    assert files(folder) == {"table.csv"}


def test_every_case_has_its_own_name():
    assert len({c[0] for c in CASES}) == len(CASES)


def test_ten_thousand_levels(folder):
    df = pd.DataFrame({"score": np.arange(20_000.0) % 7, "school": np.arange(20_000) % 50})
    df.assign(hours=[f"h{i // 2}" for i in range(20_000)]).to_csv("table.csv", index=False)
    message = fit("table.csv").message
    assert "Column 'hours' has 10,000 different values" in message
    assert "client or the cluster column" in message


HEAD = "school,hours,score\n"
ROWS = "".join(f"s{i // 5},{i % 7},{i % 4}\n" for i in range(20))
FILES = [
    # id, name, content, what the sentence holds
    ("not there", "scores.csv", None, ["no file 'scores.csv'", "Did you mean 'scores.txt'"]),
    ("no extension", "scores.txt", b"", ["'scores.txt' has none of the extensions .csv"]),
    ("empty", "a.csv", b"", ["'a.csv' has no rows"]),
    ("head only", "a.csv", HEAD.encode(), ["'a.csv' has no rows"]),
    ("blank lines", "a.csv", b"\n\n\n", ["'a.csv' has no rows"]),
    ("semicolons", "a.csv", (HEAD + ROWS).replace(",", ";").encode(), ["'a.csv' has semicolons between its columns"]),
    (
        "decimal commas",
        "a.csv",
        b"school;hours;score\na;1,5;2\na;2,5;3\n",
        ["pandas.read_csv('a.csv', sep=';', decimal=',')"],
    ),
    ("tabs", "a.csv", (HEAD + ROWS).replace(",", "\t").encode(), ["'a.csv' has tabs between its columns"]),
    (
        "latin-1",
        "a.csv",
        (HEAD + ROWS + "caf\u00e9,1,2\n").encode("latin-1"),
        ["'a.csv' is not UTF-8", "Latin-1 or Windows-1252", "iconv -f WINDOWS-1252 -t UTF-8 'a.csv' > 'utf8-a.csv'"],
    ),
    (
        "utf-16",
        "a.csv",
        (HEAD + ROWS).encode("utf-16"),
        ["'a.csv' is not UTF-8", "UTF-16", "iconv -f UTF-16 -t UTF-8 'a.csv'"],
    ),
    ("zeros", "a.csv", bytes(500), ["a.csv"]),
    ("ragged", "a.csv", (HEAD + ROWS + "s9,1,2,3,4\n").encode(), ["'a.csv' is damaged", "line 22"]),
    ("twice a name", "a.csv", ("school,hours,hours\n" + ROWS).encode(), ["more than one column named 'hours'"]),
    ("parquet is csv", "a.parquet", (HEAD + ROWS).encode(), ["'a.parquet' is damaged or not what its extension says"]),
    ("feather is csv", "a.feather", (HEAD + ROWS).encode(), ["'a.feather' is damaged or not what its extension says"]),
    ("npz is csv", "a.npz", (HEAD + ROWS).encode(), ["'a.npz' is damaged or not what its extension says"]),
    ("gz is csv", "a.csv.gz", (HEAD + ROWS).encode(), ["'a.csv.gz' is damaged or not what its extension says"]),
    ("gz cut off", "a.csv.gz", gzip.compress((HEAD + ROWS).encode())[:-9], ["'a.csv.gz' is damaged"]),
    ("csv is parquet", "a.csv", b"PAR1\x15\x04\x15\x80\xff\xfe\x00" * 20, ["'a.csv'"]),
]


@pytest.mark.parametrize(("name", "content", "fragments"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_bad_file(folder, name, content, fragments):
    Path("scores.txt").write_text("")
    if content is not None:
        Path(name).write_bytes(content)
    before = files(folder)
    message = fit(name).message
    for fragment in fragments:
        assert fragment in message
    assert files(folder) == before


def test_a_folder_is_no_table(folder):
    Path("a.csv").mkdir()
    assert "'a.csv' is a folder, not a table" in fit("a.csv").message


OUTS = [
    ("fit", "", "'--out': it is empty; name a file or folder"),
    ("compare", "", "'--out': it is empty; name a file or folder"),
    ("fit", "file", "'file' is a file; --out names a folder"),
    ("fit", "file/model", "'file/model' cannot be made, because"),
    ("fit", "locked/model", "permission denied in"),
    ("compare", "there/a.csv", "no folder 'there' to write 'a.csv' to"),
    ("compare", "a.txt", "none of the extensions .csv"),
    ("compare", "folder.csv", "'folder.csv' is a folder; name a file"),
    ("compare", "locked/a.csv", "permission denied in 'locked'"),
    *[(command, "/proc/a.csv", "in '/proc'") for command in ("fit", "compare", "advise") if Path("/proc").is_dir()],
]


@pytest.mark.parametrize(("command", "out", "fragment"), OUTS, ids=[f"{c} {o}" for c, o, _ in OUTS])
def test_a_place_that_cannot_be_written_is_found_before_any_work(folder, command, out, fragment, monkeypatch):
    table().to_csv("table.csv", index=False)
    Path("file").write_text("mine")
    Path("locked").mkdir()
    Path("folder.csv").mkdir()
    opened = os.open

    def locked(path, *how):  # also where root runs the tests
        if Path(path).parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *how)

    monkeypatch.setattr("coterie.files.os.open", locked)
    monkeypatch.setattr("coterie.data.table_files.read_table", lambda *_: pytest.fail("the table was read"))
    ran = coterie(command, "table.csv", "--formula", "score ~ hours", "--client", "school", "--out", out)
    assert fragment in ran.message
    assert files(folder) == {"table.csv", "file", "locked", "folder.csv"}
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit --formula score --client school", "needs one outcome and one '~'"),
        ("fit --formula score~hours --client school --method ditto --rounds eta=-1", "eta must be a number above 0"),
        ("compare --formula score~hours --client school --methods ditto --rounds mu=1", "mu"),
        ("fit --formula score~hours --client school --order-by hours --splits 0", "order_by changes nothing"),
        ("advise --formula score~hours --client school --within cluster", "need clusters"),
        ("advise --formula score --client school", "needs one outcome and one '~'"),
        ("advise --formula score~hours --client school --splits 0 --test-fraction .5", "test_fraction changes nothing"),
    ],
)
def test_what_needs_no_rows_is_refused_before_they_are_read(folder, line, said, monkeypatch):
    table().to_csv("table.csv", index=False)
    monkeypatch.setattr("coterie.data.table_files.read_table", lambda *_: pytest.fail("the table was read"))
    command, *options = line.split()
    assert said in coterie(command, "table.csv", *options).message


@pytest.mark.parametrize("command", ["fit", "compare", "advise"])
def test_a_client_that_is_not_there_is_said_before_anything_is_fitted(folder, command, monkeypatch):
    table().to_csv("table.csv", index=False)
    monkeypatch.setattr("coterie.methods.pooled.fit", lambda *_: pytest.fail("a model was fitted"))
    asked = {
        "fit": ["--method", "weighted-averaging", "--rounds", "main=zzz"],
        "compare": ["--methods", "local,weighted-averaging", "--rounds", "main=zzz"],
        "advise": ["--for", "zzz"],
    }[command]
    ran = coterie(command, "table.csv", "--formula", "score ~ hours", "--client", "school", *asked)
    assert "school" in ran.message and "'zzz'" in ran.message


@pytest.mark.parametrize("command", ["fit", "data"])
def test_drafts_are_not_named(folder, command, monkeypatch):
    table().to_csv("table.csv", index=False)

    def full(file, *_arguments, **_options):
        raise OSError(28, "No space left on device", str(file))

    for name in ("mkdir", "write_text"):
        monkeypatch.setattr(Path, name, full)
    monkeypatch.setattr(pd.DataFrame, "to_csv", lambda _, file, **_options: full(file))
    ran = coterie("data", "fetch", "heart", "--out", "h.csv") if command == "data" else fit("table.csv")
    assert ran.message == f"'{'h.csv' if command == 'data' else 'model'}' cannot be written: No space left on device."


def test_a_folder_with_a_model_of_something_else_is_left_alone(folder):
    table().to_csv("table.csv", index=False)
    Path("model").mkdir()
    Path("model/model.json").write_text('{"layers": 3}')
    before = files(folder)
    assert "model.json" in fit("table.csv").message
    assert files(folder) == before
    assert Path("model/model.json").read_text() == '{"layers": 3}'


def soak(*case):
    """What the commands in this process have said of it already; the two others take the ways that differ."""
    return pytest.param(*case, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        soak(["fit", "nowhere.csv", "--formula", "a ~ b", "--client", "c"], "There is no file 'nowhere.csv'."),
        (["fit", "table.csv", "--formula", "score ~ houres", "--client", "school"], "Did you mean 'hours'?"),
        soak(["predict", "nowhere", "table.csv"], "There is no coterie model in 'nowhere'"),
        soak(["data", "show", "hsb"], "There is no table 'hsb'"),
        (["fit", "table.csv", "--formula"], "--formula"),
    ],
    ids=["file", "column", "model", "data", "usage"],
)
def test_the_installed_command(folder, arguments, fragment):
    table().to_csv("table.csv", index=False)
    program = Path(sys.executable).with_name("coterie")
    run = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("Error: ")
    assert run.stderr.count("\n") == 1
    assert fragment in run.stderr
    assert files(folder) == {"table.csv"}


def test_a_slip_in_a_command_is_said_once():
    ran = coterie("fitt")
    assert (ran.code, ran.err) == (2, "Error: No such command 'fitt'. Did you mean 'fit'? See 'coterie --help'.\n")


def test_an_error_nobody_foresaw_asks_for_a_report(folder, monkeypatch):
    table().to_csv("table.csv", index=False)

    def broken(*_arguments, **_options):
        raise RuntimeError("odd")

    monkeypatch.setattr("coterie.results.table_fit.fitting", broken)
    ran = fit("table.csv")
    assert ran.code == 1
    assert "met an error it does not know (RuntimeError: odd)" in ran.err
    assert ran.err.count("\n") == 1
    assert files(folder) == {"table.csv"}
    ran = coterie("--debug", "fit", "table.csv", "--formula", "score ~ hours", "--client", "school")
    assert "Traceback" in ran.err


def test_an_interrupt_ends_it(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("coterie.data.table_files.read_table", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["fit", "table.csv", "--formula", "score ~ hours", "--client", "school"])
    assert stop.value.code == 130


def test_an_interrupt_of_compiled_code_ends_it_too(folder, monkeypatch):
    def interrupted(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as e:
            raise SystemError("a function returned a result with an exception set") from e

    monkeypatch.setattr("coterie.data.table_files.read_table", interrupted)
    ran = fit("table.csv")
    assert (ran.code, ran.out, ran.err) == (130, "", "Interrupted: nothing was written.\n")


def _interrupt(*_, **__):
    raise KeyboardInterrupt


FIT = ["fit", "table.csv", "--formula", "score ~ hours", "--client", "school", "--splits", "1", "--out", "model"]
PREDICT = ["predict", "model", "table.csv", "--out", "a.csv"]


@pytest.mark.parametrize(
    ("where", "command", "kept"),
    [
        ("coterie.results.table_fit.each_split", FIT, "nothing was"),
        ("coterie.report.fit_page.write_report", FIT, "nothing was"),
        ("coterie.results.saved_values.files.write", FIT, "nothing was"),
        ("coterie.cli.fit_and_compare.explain", FIT, "'model/model.json', 'model/report.html' was"),
        ("coterie.data.table_files.write_table", PREDICT, "nothing was"),
        ("coterie.files._sync", PREDICT, "nothing was"),
        ("coterie.cli.use_saved_results.sentences", PREDICT, "'a.csv' was"),
    ],
)
def test_an_interrupt_says_what_was_kept(folder, monkeypatch, where, command, kept):
    table().to_csv("table.csv", index=False)
    if command is PREDICT:
        assert coterie(*FIT).code == 0
    before = files(folder)
    monkeypatch.setattr(where, _interrupt)
    ran = coterie(*command)
    assert (ran.code, ran.err) == (130, f"Interrupted: {kept} written.\n")
    assert (files(folder) == before) == (kept == "nothing was")


def test_what_was_read_is_said_before_the_first_method_is_fitted(folder, monkeypatch):
    table().to_csv("table.csv", index=False)
    monkeypatch.setattr("coterie.results.table_fit.each_split", _interrupt)
    assert coterie(*FIT).out == "Read 60 rows of 6 schools from table.csv.\n"
