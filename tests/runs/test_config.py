"""A configuration: every wrong key and value has a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods.registry import TRAINED
from coterie.runs.config import Config, read
from coterie.runs.federated_data import federated
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names

BAD = [
    ({"dta": {}}, r"no section 'dta'. Did you mean 'data'"),
    ({"data": {"clint": 3}}, r"\[data\] has no key 'clint'. Did you mean 'clients'"),
    ({"data": 3}, r"\[data\] must be a table"),
    ({"data": {"clients": 0}}, r"clients of \[data\] must be a whole number from 1, not 0"),
    ({"data": {"clients": True}}, r"clients of \[data\] must be a whole number"),
    ({"data": {"partition": "iidd"}}, "must be auto, iid, .* Did you mean 'iid'"),
    ({"data": {"angles": ["a"]}}, r"angles of \[data\] must be a list of numbers"),
    ({"data": {"test": 1.5}}, r"test of \[data\] must be a number from 0 to 0.95"),
    ({"run": {"rounds": 2.5}}, r"rounds of \[run\] must be a whole number from 1, not 2.5"),
    ({"run": {"seeds": [1, 1]}}, r"seeds of \[run\] must be different seeds"),
    ({"run": {"seeds": [10**30]}}, r"seeds of \[run\] must be different seeds"),
    ({"run": {"seeds": "two"}}, r"seeds of \[run\] must be different seeds"),
    ({"run": {"strict": 1}}, r"strict of \[run\] must be true or false"),
    ({"model": {"path": 3}}, r"path of \[model\] must be a name"),
    ({"model": {"args": "x"}}, r"args of \[model\] must be a table"),
    ({"engine": {"kind": "rai"}}, r"kind of \[engine\] must be inprocess"),
    ({"method": {"name": "fedav"}}, "no method to train called 'fedav'. Did you mean 'fedavg'"),
    ({"method": {"name": "fedavg", "etta": 1}}, "fedavg has no hyper-parameter 'etta'. Did you mean 'eta'"),
    ({"method": {"name": "fedavg", "eta": -1}}, "fedavg: eta must be a number above 0 or a function, not -1"),
    ({"methods": {"ditto": {"lam": [0.1, -1.0]}}}, "ditto: lam must be a number from 0, not -1.0"),
    ({"methods": {"ditto": {"lam": []}}}, "needs one value of lam at least"),
    ({"methods": {"ditto": 3}}, r"\[methods.ditto\] must be a table"),
    ({"methods": {"all": {"etta": 3}}}, r"No method has a hyper-parameter 'etta', .* Did you mean 'eta'"),
    ({"method": {"name": "fedavg", "seed": 3}}, "has no hyper-parameter 'seed'"),
    ({"data": {"alpha": 0.5}}, names("alpha [data] partition = 'dirichlet'")),
    ({"data": {"partition": "iid", "least": 3}}, names("least [data] partition = 'dirichlet'")),
    ({"data": {"shards": 2}}, names("shards [data] partition = 'shards'")),
    ({"data": {"partition": "iid", "column": "site"}}, names("column [data] partition = 'by_column' or 'given'")),
    ({"data": {"angles": [0, 90]}}, names("angles [data] partition = 'rotated'")),
    ({"data": {"partition": "by_column", "clients": 4}}, names("clients [data] partition 'iid' 'rotated'")),
    ({"data": {"given_split": "fold", "test": 0.2}}, names("given_split test one")),
    ({"data": {"validation": 0.2}}, names("validation [data] settings patience list")),
    ({"model": {"path": "mlp", "greater_is_better": True}}, names("greater_is_better [model] score")),
    ({"method": {"name": "local", "personal": ["a"]}}, "has no hyper-parameter 'personal'"),
]


def test_keys_that_others_make_matter_are_taken_beside_them():
    for data in ({"partition": "given", "column": "site"}, {"partition": "dirichlet", "alpha": 0.5, "least": 3}):
        assert Config.of({"data": data}).data.items() >= data.items()
    for more in (
        {"run": {"patience": 2}},
        {"methods": {"ditto": {"lam": [0.1, 1.0]}}},
        {"methods": {"all": {"B": [5]}}},
    ):
        assert Config.of({"data": {"validation": 0.2}, **more}).data["validation"] == 0.2


@pytest.mark.parametrize(("tables", "message"), BAD)
def test_every_mistake_has_a_sentence(tables, message):
    with pytest.raises(CoterieError, match=message) as found:
        Config.of(tables)
    text = str(found.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_can_be_made_of_its_defaults(name):
    method = TRAINED[name]
    method.check({})
    assert method.summary
    assert method.defaults.keys() <= method.hyper_parameters.keys()


def test_the_hash_knows_what_matters():
    plain = Config.of({})
    assert plain.fingerprint() == Config.of({"run": {"rounds": 50}, "method": {"eta": 0.1}}).fingerprint()
    assert plain.fingerprint() == Config.of({"engine": {"threads": 2}, "run": {"checkpoint": "x"}}).fingerprint()
    others = [{"run": {"rounds": 51}}, {"data": {"seed": 1}}, {"method": {"eta": 0.2}}, {"model": {"ridge": 0.1}}]
    assert len({plain.fingerprint(), *(Config.of(t).fingerprint() for t in others)}) == 5


def test_hyper_parameters_for_all_go_to_those_that_have_them():
    config = Config.of({"methods": {"all": {"eta": 0.3, "lam": 2.0}, "ditto": {"lam": 1.0}}})
    assert config.given("fedavg") == {"eta": 0.3}
    assert config.given("ditto") == {"eta": 0.3, "lam": 1.0}
    assert config.given("pfedme") == {"eta": 0.3, "lam": 2.0}
    assert config.document("ditto")["methods"]["ditto"] == {"eta": 0.3, "B": 10, "lam": 1.0, "s": 5}


@pytest.mark.parametrize("name", ["group-sgd", "group-models", "found-groups"])
def test_of_two_ways_to_say_one_thing_the_one_given_drops_the_default_of_the_other(name):
    method = TRAINED[name]
    for given in ({"tau": 5}, {"tau": 1}, {"tau": [1, 5]}):
        for tables in ({"methods": {name: given}}, {"method": {"name": name, **given}}, {"methods": {"all": given}}):
            config = Config.of(tables)
            assert config.given(name) == given
            assert "E" not in config.document(name)["methods"][name]
            made = [
                method.make(0, **{method.layout: ("*",)} | s if method.layout else s) for s in method.settings(given)
            ]
            assert {(one.E, one.local_steps) for one in made} <= {(0, 1), (0, 5)}
    plain = method.settings({})[0]
    assert plain["E"] == 1 and "tau" not in plain
    specific = Config.of({"methods": {"all": {"tau": 5}, name: {"E": 2}}})
    assert specific.given(name) == {"E": 2}
    for both in ({"tau": 5, "E": 2}, {"tau": 1, "E": 1}):
        with pytest.raises(CoterieError, match="leave one of the two out"):
            Config.of({"methods": {name: both}})


@pytest.mark.parametrize("name", ["digits", "fashion"])
def test_the_examples_are_right(name):
    config = read(Path(__file__).parents[2] / "examples" / f"{name}.toml")
    assert config.layout["personal"] == ["head*"]
    for method in TRAINED.values():
        for setting in method.settings(config.given(method.name)):
            method.make(0, **({method.layout: ("head*",)} if method.layout else {}) | setting)


def test_lists_are_choices_unless_the_hyper_parameter_is_a_list():
    found = TRAINED["fedavg"].settings({"eta": [0.1, 0.2], "personal": ["a", "b"], "E": [1, 2, 3]})
    assert len(found) == 6
    assert {tuple(s["personal"]) for s in found} == {("a", "b")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data", "is not TOML"),
        (None, names("no file c.toml configuration")),
        (b"\xff\xfe", names("text UTF-8 save")),
        ("# nothing", "is empty: say at least"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, message):
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CoterieError, match=message):
        read(path)


def test_a_mark_before_the_text_is_no_mistake(tmp_path):
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbf[run]\nrounds = 3\n")
    assert read(tmp_path / "c.toml").run["rounds"] == 3


SOURCE = """
import numpy as np
def make(n=60):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 3)), rng.integers(0, 2, n)
    return X, y, np.repeat(["a", "b", "c"], n // 3), np.repeat([1, 0, 1], n // 3)
def one():
    return 3
def uneven():
    return np.zeros((3, 2)), np.zeros(4)
def empty():
    return np.zeros((0, 2)), np.zeros(0)
def raises():
    raise RuntimeError("no disk")
def mixed():
    X, y, client, _ = make()
    return X, y, client, np.arange(60) % 2
def sparse():
    import scipy.sparse
    return scipy.sparse.eye(3, format="csr"), np.arange(3)
def text():
    return np.full((6, 2), "a"), np.arange(6) % 2
def masked():
    return np.ma.masked_greater(np.arange(12.0).reshape(6, 2), 3.0), np.arange(6) % 2
def unreal():
    return np.ones((6, 2)) + 1j, np.arange(6) % 2
def words():
    return np.ones((6, 2)), ["cat", "dog"] * 3
def objects():
    return np.array([[1, None]] * 6, dtype=object), np.array([0, True] * 3, dtype=object)
def gaps():
    return np.ones((6, 2)), np.arange(6) * 10**9
def leaves():
    import sys
    sys.exit(1)
value = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "source_of_tests.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def described(folder, **data):
    return Config.of({"data": data}, folder)


def test_arrays_of_a_function_with_clients_and_groups(folder):
    found = federated(described(folder, source="source_of_tests:make", partition="given", args={"n": 90}), 0)
    assert found.labels == ("b", "a", "c")  # sorted by group
    assert found.group.tolist() == [0, 1, 1]
    assert found.known
    assert [len(found.train.y), len(found.test.y)] == [45, 45]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "digit"}, names("data 'digit' mean 'digits'")),
        ({"source": "digits", "args": {"n": 1}}, "takes no args"),
        ({"source": "no_module_here:make"}, r"cannot be imported \(No module named"),
        ({"source": "source_of_tests:mke"}, names("'mke' mean 'make'")),
        ({"source": "source_of_tests:one"}, "must give X and y"),
        ({"source": "source_of_tests:uneven"}, names("3 rows X y shape")),
        ({"source": "source_of_tests:empty"}, "has no rows"),
        ({"source": "source_of_tests:sparse"}, names("X sparse matrix X.toarray")),
        ({"source": "source_of_tests:text"}, names("X type <U1 real numbers")),
        ({"source": "source_of_tests:masked"}, names("X masked values")),
        ({"source": "source_of_tests:unreal"}, names("X type complex128 real numbers")),
        ({"source": "source_of_tests:words", "partition": "iid", "clients": 99}, names("rows not enough")),
        ({"source": "source_of_tests:leaves"}, names("raises SystemExit 1")),
        ({"source": "source_of_tests:value"}, "no function"),
        ({"source": "source_of_tests:make", "args": {"m": 1}}, "does not take these args"),
        ({"source": "source_of_tests:make", "partition": "by_column", "column": "clint"}, "Did you mean 'client'"),
        ({"source": "source_of_tests:raises"}, "cannot be made: it raises RuntimeError: no disk"),
        (
            {"source": "source_of_tests:mixed", "partition": "given"},
            "Rows of client a are of more than one group: give",
        ),
        ({"source": "source_of_tests:mixed", "clients": 1}, names("clients iid partition 'given'")),
        ({"source": "source_of_tests:make", "partition": "by_column", "column": "X"}, "one client for each row"),
        ({"source": "source_of_tests:make", "clients": 2}, names("clients iid partition 'given'")),
        ({"source": "digits", "partition": "shards", "clients": 2, "shards": 9000}, "ask for fewer rows"),
        ({"source": "no.npz"}, "cannot be read: No such file"),
        ({"source": "no.npz", "args": {"n": 1}}, "takes no args"),
        ({"clients": 2000}, "rows are not enough"),
    ],
)
def test_data_that_are_not_there(folder, data, message):
    with pytest.raises(CoterieError, match=message):
        federated(described(folder, **data), 0)


def test_objects_that_are_numbers_are_read_as_such(folder):
    found = federated(described(folder, source="source_of_tests:objects", partition="iid", clients=1), 0)
    assert found.train.X.dtype == np.float64 and np.isnan(found.train.X[:, 1]).all()
    assert found.classes == 2


def test_classes_with_gaps_that_no_memory_holds(folder):
    config = described(folder, source="source_of_tests:gaps", partition="iid", clients=1)
    with pytest.raises(CoterieError, match=names("softmax 1 numbers y goes")):
        _ = TrainingProblem.of(config, 0).objective


def test_arrays_in_a_file_and_nothing_that_runs(folder):
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", X=rng.normal(size=(40, 3)), y=rng.integers(0, 2, 40), shop=np.repeat([5, 7], 20))
    found = federated(described(folder, source="rows.npz", partition="by_column", column="shop"), 0)
    assert found.labels == ("5", "7")
    np.savez(folder / "bad.npz", X=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(CoterieError, match=names("something else plain arrays")):
        federated(described(folder, source="bad.npz"), 0)
    (folder / "cut.npz").write_bytes((folder / "rows.npz").read_bytes()[:300])
    (folder / "empty.npz").touch()
    for name in ("cut.npz", "empty.npz"):
        with pytest.raises(CoterieError, match=names("empty cut off write")):
            federated(described(folder, source=name), 0)
    with (folder / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(CoterieError, match=names("holds array without name")):
        federated(described(folder, source="one.npz"), 0)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_partitions_are_functions_of_the_seed(partition):
    more = {"alpha": 0.1} if partition == "dirichlet" else {}
    config = Config.of({"data": {"partition": partition, "clients": 8, "rows": 400, **more}})
    one, again, other = federated(config, 0), federated(config, 0), federated(config, 1)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert len(one.train.y) + len(one.test.y) == 400
    fixed = replace(config, data=config.data | {"seed": 5})
    assert federated(fixed, 0).fingerprint == federated(fixed, 1).fingerprint


def test_clients_without_some_labels_and_with_one_row_are_let_through():
    config = Config.of({"data": {"partition": "shards", "shards": 1, "clients": 30, "rows": 61}})
    found = federated(config, 0)
    assert len(found) == 30
    assert found.classes == 10
