"""One front: rows of any kind, a formula or a net, relations, a method; and results with the same nouns."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie import CoterieError, Torch
from coterie.deployment import toml_files
from coterie.report.matplotlib_plots import FitPlots, TrainingPlots
from tests.messages import names

NOUNS = [
    "comparison",
    "recommended",
    "method",
    "reason",
    "notes",
    "ledger",
    "theory",
    "client",
    "report",
    "save",
    "config",
]
"""What results of both kinds have."""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype(np.float32)
CLIENT = np.repeat([f"c{i}" for i in range(6)], 20)
Y = (X[:, 0] * np.where(np.isin(CLIENT, ["c0", "c1", "c2"]), 1.0, -1.0) > 0).astype(np.int64)
GROUP = {f"c{i}": "ab"[i >= 3] for i in range(6)}
FEW = {"rounds": 3, "eta": 0.5}
SOFTMAX = Torch("softmax")


def table() -> pd.DataFrame:
    return pd.DataFrame({"school": CLIENT, "x": X[:, 0].astype(float), "y": X[:, 1].astype(float)})


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ((X, Y, CLIENT), {}),
        ((X, Y), {"client": CLIENT}),
        ({"X": X, "y": Y, "site": CLIENT}, {"client": "site"}),
        ({who: (X[who == CLIENT], Y[who == CLIENT]) for who in GROUP}, {}),
    ],
    ids=["tuple", "array", "named", "by client"],
)
def test_rows_of_any_kind_give_the_same_models(rows, options):
    result = coterie.fit(rows, SOFTMAX, method="fedavg", rounds=FEW, **options)
    expected = coterie.fit((X, Y, CLIENT), SOFTMAX, method="fedavg", rounds=FEW)
    assert result.labels == tuple(GROUP)
    np.testing.assert_array_equal(result.theta, expected.theta)


def test_auto_compares_what_fits_the_relations_that_are_given():
    result = coterie.fit((X, Y, CLIENT), SOFTMAX, group=GROUP, rounds={"rounds": 30, "eta": 0.5})
    assert set(result.comparison.index) == {"local", "pooled", "fedavg", "ditto", "group-models"}
    assert any("methods='all'" in note for note in result.notes)
    assert result.method == result.recommended == result.comparison.index[0]
    assert result.recommended in result.reason
    alone = coterie.compare((X, Y, CLIENT), SOFTMAX, methods=["ifca"], rounds=FEW)
    assert set(alone.index) == {"local", "pooled", "ifca"}


def test_a_network_and_a_main_client_are_relations():
    tied = coterie.fit((X, Y, CLIENT), SOFTMAX, network={"space": "model", "k": 2}, rounds={"rounds": 3})
    assert "similarity-network" in tied.comparison.index and "bias-correction" not in tied.comparison.index
    helped = coterie.fit((X, Y, CLIENT), SOFTMAX, main="c1", method="weighted-averaging", rounds={"rounds": 3})
    assert helped.client("c1").shape == (10,)
    with pytest.raises(CoterieError, match=names("'c2' helped main")):
        helped.client("c2")


def test_methods_that_are_named_are_compared_on_a_table():
    found = coterie.compare(table(), "y ~ x", "school", methods=["hierarchical", "ditto"], rounds=3, splits=1)
    assert list(found.index) == ["local", "pooled", "hierarchical", "ditto"]
    with pytest.raises(CoterieError, match=names("no method 'dito' Did you mean 'ditto'")):
        coterie.compare(table(), "y ~ x", "school", methods=["dito"])


def test_several_seeds_give_evidence_and_the_first_the_models():
    both = coterie.fit((X, Y, CLIENT), SOFTMAX, method="ditto", rounds=FEW, seed=[3, 4])
    first = coterie.fit((X, Y, CLIENT), SOFTMAX, method="ditto", rounds=FEW, seed=3)
    assert [run.seed for run in both.evidence.runs["ditto"]] == [3, 4]
    np.testing.assert_array_equal(both.theta, first.theta)


@pytest.mark.parametrize("kind", ["table", "net"])
def test_results_share_their_nouns_and_come_back_from_a_folder(kind, tmp_path):
    if kind == "table":
        result = coterie.fit(table(), "y ~ x", "school", splits=2)
    else:
        result = coterie.fit((X, Y, CLIENT), SOFTMAX, method="fedavg", rounds=FEW)
    result.save(tmp_path / "kept")
    again = coterie.load(tmp_path / "kept")
    assert type(again) is type(result)
    for name in NOUNS:
        assert hasattr(again, name)
    for one in (result, again):
        pd.testing.assert_frame_equal(one.comparison, result.comparison)
        assert (one.method, one.recommended, one.reason, one.notes) == (
            *(result.method, result.recommended),
            *(result.reason, result.notes),
        )
        np.testing.assert_array_equal(one.client("c2"), result.client("c2"))
        with pytest.raises(CoterieError, match=names("no client 'c9'")):
            one.client("c9")
    result.report(tmp_path / "one.html"), again.report(tmp_path / "other.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_a_table_may_be_named_by_its_file(tmp_path):
    table().to_csv(tmp_path / "t.csv", index=False)
    result = coterie.fit(tmp_path / "t.csv", "y ~ x", "school", splits=0)
    expected = coterie.fit(coterie.read_table(tmp_path / "t.csv", ["school"]), "y ~ x", "school", splits=0)
    pd.testing.assert_frame_equal(result.client_coefficients, expected.client_coefficients)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coterie.fit((X, Y, CLIENT), SOFTMAX, family="binomial"), "family goes with a formula"),
        (lambda: coterie.fit((X, Y, CLIENT), SOFTMAX, cluster="a"), "say group for a net"),
        (lambda: coterie.fit(table(), "y ~ x", "school", partition="iid"), "partition goes with coterie.Torch"),
        (lambda: coterie.fit(table(), "y ~ x", "school", group="g"), "say cluster for a table"),
        (lambda: coterie.fit(table(), "y ~ x"), "A formula needs client"),
        (lambda: coterie.fit(table(), "y ~ x", "school", engine="rai"), "engine must be inprocess, loopback or ray"),
        (lambda: coterie.fit((X, Y), SOFTMAX, partition=3), "partition must be a name"),
        (lambda: coterie.fit(table()), "Say what a client's model is"),
        (lambda: coterie.fit("digits.toml", method="ditto"), "write method into its sections"),
        (lambda: coterie.fit(table(), SOFTMAX), "A table for a net needs target"),
        (lambda: coterie.fit({}, SOFTMAX), "has no client"),
        (lambda: coterie.fit((X, Y[:5]), SOFTMAX), "The first argument gives 120 rows"),
        (lambda: coterie.fit({"a": X}, SOFTMAX), "Client a must have"),
        (lambda: coterie.fit((X, Y), SOFTMAX, client="who"), "no array 'who', as client says"),
        (lambda: coterie.fit((X, Y, CLIENT), SOFTMAX, group={"c0": 1}), "does not say the group of client c1"),
        (lambda: coterie.fit((X, Y, CLIENT), SOFTMAX, method="dito"), "Did you mean 'ditto'"),
        (lambda: coterie.fit((X, Y, CLIENT), SOFTMAX, rounds={"etta": 1}), "etta"),
        (lambda: Torch("mlp", dtype="float8"), "dtype must be float32, float64 or bfloat16"),
        (lambda: Torch(3), "path must be a name, a function, or a module, not 3"),
    ],
)
def test_what_does_not_belong_is_refused_in_a_sentence(call, message):
    with pytest.raises(CoterieError) as found:
        call()
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def again_from_file(result, tmp_path):
    """What a fit of a result's configuration, written into a file, gives."""
    (tmp_path / "call.toml").write_text(toml_files.text(result.config()))
    return coterie.fit(tmp_path / "call.toml")


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": "area", "splits": 2},
        {"cluster": ["area"], "gamma": [0.5, 2.0], "lam": {"area": 3.0}, "splits": 1, "seed": 4},
        {"method": "similarity-network", "network": {"k": 2, "space": "data", "lam": 0.1}, "splits": 1},
        {"method": "weighted-averaging", "main": ["c0"], "rounds": {"alpha": 0.3}, "splits": 0},
        {"family": "gaussian", "covariance": "full", "reml": False, "missing": "drop", "splits": 1},
    ],
)
def test_the_configuration_of_a_table_s_fit_gives_its_numbers_again(options, tmp_path):
    frame = table().assign(area=np.where(np.isin(CLIENT, ["c0", "c1", "c2"]), "n", "s"))
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = coterie.fit(tmp_path / "t.csv", "y ~ x", "school", **options)
    for other in (again_from_file(result, tmp_path), coterie.fit(result.config())):
        pd.testing.assert_frame_equal(other.client_coefficients, result.client_coefficients, check_exact=True)
        timed = [column for column in result.comparison if column != "seconds"]
        pd.testing.assert_frame_equal(other.comparison[timed], result.comparison[timed], check_exact=True)
        assert (other.method, other.config()) == (result.method, result.config())


def test_the_configuration_of_a_net_s_fit_gives_its_numbers_again(tmp_path):
    np.savez(tmp_path / "rows.npz", X=X, y=Y, site=CLIENT)
    result = coterie.fit(str(tmp_path / "rows.npz"), SOFTMAX, client="site", rounds=FEW, seed=[1, 2])
    for other in (again_from_file(result, tmp_path), coterie.fit(result.config())):
        np.testing.assert_array_equal(other.theta, result.theta)
        timed = [column for column in result.comparison if column != "seconds"]
        pd.testing.assert_frame_equal(other.comparison[timed], result.comparison[timed], check_exact=True)
        assert (other.method, other.config()) == (result.method, result.config())
        assert other.evidence.fingerprint == result.evidence.fingerprint


def test_an_array_that_is_not_in_a_file_is_missed(tmp_path):
    np.savez(tmp_path / "rows.npz", X=X, y=Y, site=CLIENT)
    for options in ({"client": "sit"}, {"client": "site", "group": "town"}):
        with pytest.raises(CoterieError, match=names("no array")):
            coterie.fit(tmp_path / "rows.npz", SOFTMAX, rounds=1, **options)


def test_what_was_in_memory_is_asked_for_when_a_configuration_is_read(tmp_path):
    net = coterie.fit((X, Y, CLIENT), SOFTMAX, method="fedavg", rounds=FEW)
    fit = coterie.fit(table(), "y ~ x", "school", splits=0)
    with pytest.raises(CoterieError, match=names("rows memory coterie.fit .npz data.source")):
        again_from_file(net, tmp_path)
    with pytest.raises(CoterieError, match=names("table memory coterie.fit file [data]")):
        again_from_file(fit, tmp_path)
    np.testing.assert_array_equal(coterie.fit((X, Y, CLIENT), net.config()).theta, net.theta)
    other = coterie.fit(table(), fit.config())
    pd.testing.assert_frame_equal(other.client_coefficients, fit.client_coefficients)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"formula": "y ~ x"}}, "does not say source"),
        ({"model": {"formula": "y ~ x", "famly": 1}, "data": {}}, "Did you mean 'family'"),
        ({"model": {"formula": "y ~ x"}, "run": {}}, "has no section 'run'"),
        ({"model": {"formula": "y ~ x"}, "data": {"source": "none.csv", "client": "a"}}, "none.csv"),
        ({"data": 5, "model": {}}, r"\[data\] must be a table of names and values, not 5"),
        ({"data": {"source": 5}}, "source of .data. must be text, not 5"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused(tables, message):
    with pytest.raises(CoterieError, match=message):
        coterie.fit(tables)


class TestNets:
    """Modules, and what makes them."""

    torch = pytest.importorskip("torch")

    @staticmethod
    def net():
        return TestNets.torch.nn.Linear(4, 2)

    def test_a_module_a_function_and_a_path_are_nets(self, tmp_path):
        module = self.net()
        for net in (module, self.net, "torch.nn:Linear"):
            args = {"in_features": 4, "out_features": 2} if isinstance(net, str) else {}
            result = coterie.fit((X, Y, CLIENT), Torch(net, args=args), method="fedavg", rounds=FEW)
            made = result.module("c1")
            assert isinstance(made, self.torch.nn.Linear)
            with self.torch.no_grad():
                answered = made(self.torch.from_numpy(X)).argmax(1).numpy()
            np.testing.assert_array_equal(result.predict(X, "c1"), answered)

    def test_what_has_no_name_is_told_from_others_and_known_again(self):
        def made(width):
            return lambda: self.torch.nn.Linear(4, width)

        texts = [Torch(made(width)).path for width in (2, 2, 3)]
        assert texts[0] == texts[1] and texts[0].startswith("in memory:<lambda> ")
        self.torch.manual_seed(0)
        module = self.net()
        assert Torch(module).path == Torch(copy.deepcopy(module)).path != Torch(self.net()).path
        assert Torch(self.torch.nn.Linear).path == "torch.nn.modules.linear:Linear"

    def test_datasets_by_client_are_rows(self):
        data = {
            who: self.torch.utils.data.TensorDataset(*map(self.torch.from_numpy, (X[who == CLIENT], Y[who == CLIENT])))
            for who in GROUP
        }
        result = coterie.fit(data, SOFTMAX, method="fedavg", rounds=FEW)
        expected = coterie.fit((X, Y, CLIENT), SOFTMAX, method="fedavg", rounds=FEW)
        np.testing.assert_array_equal(result.theta, expected.theta)

    def test_datasets_that_would_be_read_wrongly_are_refused(self):
        """Random transforms would be drawn once and without the seed; weights beside x and y would be lost."""
        rng = np.random.default_rng(0)

        class Items:
            def __init__(self, item, many=6):
                self.item, self.many = item, many

            def __len__(self):
                return self.many

            def __getitem__(self, row):
                return self.item(row)

        fixed = Items(lambda row: (X[row], Y[row]))
        for odd, words in (
            (Items(lambda row: (X[row] * rng.normal(), Y[row])), "c other items read once random Deep.of_clients"),
            (Items(lambda row: (X[row], Y[row], 1.0)), "c tuple of 3 pair"),
            (Items(lambda row: {"x": X[row], "y": Y[row]}), "c dict pair"),
            (Items(lambda row: (X[row], Y[row]), many=0), "c no rows leave it out"),
            ((X[:0], Y[:0]), "c no rows leave it out"),
        ):
            with pytest.raises(CoterieError, match=names(words)):
                coterie.fit({"a": fixed, "b": (X, Y), "c": odd}, SOFTMAX, method="fedavg", rounds=FEW)

    def test_a_module_begins_with_one_model_which_ifca_cannot_use(self, monkeypatch):
        """Refused before anything is trained, and left out where all methods that can be used are wanted."""
        with pytest.raises(CoterieError, match=names("ifca begin apart function")):
            coterie.compare((X, Y, CLIENT), Torch(self.net()), methods=["fedavg", "ifca"], rounds={"rounds": 10**8})
        taken = []

        def stop(config, methods):
            taken.append(methods)
            raise CoterieError("Enough.")

        monkeypatch.setattr("coterie.evidence.training_comparison.need_known", stop)
        for net in (self.net(), self.net):
            with pytest.raises(CoterieError, match="Enough"):
                coterie.compare((X, Y, CLIENT), Torch(net), methods="all", rounds=FEW)
        assert sorted({*taken[1]} - {*taken[0]}) == ["fedem", "fedsoft", "ifca"] and "fedavg" in taken[0]

    def test_a_module_without_sizes_is_refused_with_what_to_do(self):
        with pytest.raises(CoterieError, match=names("lazy size nn.Linear(64, 10)")):
            coterie.fit((X, Y, CLIENT), Torch(self.torch.nn.LazyLinear(2)), method="fedavg", rounds=FEW)

    def test_a_net_of_one_s_own_is_read_back_only_with_its_code(self, tmp_path):
        result = coterie.fit((X, Y, CLIENT), Torch(self.net), method="local", rounds=FEW)
        result.save(tmp_path)
        again = coterie.load(tmp_path)
        np.testing.assert_array_equal(again.client("c0"), result.client("c0"))
        with pytest.raises(CoterieError, match=names("code not coterie's model=")):
            again.predict(X, "c0")
        again = coterie.load(tmp_path, model=self.net)
        np.testing.assert_array_equal(again.predict(X, "c0"), result.predict(X, "c0"))


CALLED = [
    *(coterie.advise, coterie.bootstrap, coterie.compare, coterie.compare_fits, coterie.fit, coterie.load),
    *(coterie.read_table, coterie.stack_tasks, Torch.__init__),
    *(getattr(of, name) for of in (coterie.FitResult, coterie.TrainingResult, coterie.Advice, FitPlots, TrainingPlots)
      for name in dir(of) if name[0] != "_" and inspect.isfunction(getattr(of, name))),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLED, ids=lambda call: call.__qualname__)
def test_arguments_that_do_not_fit_a_call_are_told_in_words(call):
    takes = inspect.signature(call).parameters
    known = [p.name for p in takes.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
    needed = [name for name in known if takes[name].default is inspect.Parameter.empty]
    own = [None] * ("self" in takes)
    if needed:
        with pytest.raises(CoterieError, match=rf"^\w+\(\) needs {needed[0]}.*: call \w+\({', '.join(needed)}\)\.$"):
            call(*own)
    if call is coterie.load or not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in takes.values()):
        slip = (known[-1] if known else "x") + "q"
        with pytest.raises(CoterieError, match=rf"^\w+\(\) has no argument '{slip}'\. ?(Did you mean|There|Leave)"):
            call(*own, *["x"] * len(needed), **{slip: 1})


def test_slips_in_calls_that_pass_arguments_on_are_told_too():
    for call in (coterie.compare, coterie.advise):
        with pytest.raises(CoterieError, match=r"\(\) has no argument 'cleint'\. Did you mean 'client'\?"):
            call(None, "y ~ x", cleint="g")
    with pytest.raises(CoterieError, match=r"^(?!.* cluster,.* cluster,).*There are client, cluster, "):
        coterie.advise(None, "y ~ x", zzz=1)
    with pytest.raises(CoterieError, match=r"fit\(\) is called with too many positional arguments: call fit\(rows\)"):
        coterie.fit(1, 2, 3, 4, 5)
