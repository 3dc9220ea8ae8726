"""The tree model as scikit-learn estimators: ``fit(X, y, clients=..., clusters=...)``, ``predict``, ``score``.

With scikit-learn's metadata routing the labels travel beside X::

    sklearn.set_config(enable_metadata_routing=True)
    model = HierarchicalRegressor().set_fit_request(clients=True).set_predict_request(clients=True)
    GridSearchCV(model.set_score_request(clients=True), {"covariance": ["diagonal", "full"]}).fit(X, y, clients=schools)

Without it they travel as columns of X, which ``client_column`` and ``cluster_column`` name::

    GridSearchCV(HierarchicalRegressor(client_column="school"), {"reml": [True, False]}).fit(X, y)

Without labels there is one client, and one model for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, d2_tweedie_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from coterie.data.array_input import (
    Column,
    as_list,
    at_levels,
    cluster_columns,
    coded_labels,
    column_names,
    columns_named,
    same_length,
    take_columns,
    together,
)
from coterie.data.clients import Clients, relative_weights
from coterie.data.columns import at_rows
from coterie.data.design import INTERCEPT
from coterie.data.prepare_table import informative_tree
from coterie.errors import CoterieError
from coterie.families import BINOMIAL, family_named, is_family, listed_names, name_of_numbers
from coterie.methods.registry import FITTED
from coterie.numerics.arrays import Floats
from coterie.options import Option, declared
from coterie.results.fit_options import Options
from coterie.results.predict import finite_mean, predict_rows
from coterie.results.table_fit import Fitting

_BLOCK = 1 << 15  # rows at a time, so that what is gathered stays in cache


class Parts(NamedTuple):
    """X (n, p) float64, and labels of its rows."""

    X: Floats
    clients: Any
    clusters: Any


@dataclass(eq=False, repr=False, kw_only=True)
class _Hierarchical(BaseEstimator):
    """What the two estimators share."""

    method: str = "hierarchical"
    covariance: str = "auto"
    cluster_variance: str = "common"
    shared: Sequence[Column] = ()
    reml: bool = True
    fit_intercept: bool = True
    client_column: Column | None = None
    cluster_column: Column | Sequence[Column] | None = None
    random_state: Annotated[int, Option("Seed of the splits.")] = 0

    def _fit(self, parts: Parts, y: Floats, weights: Floats | None, family: str) -> Self:
        start, every = perf_counter(), column_names(self)
        labels = columns_named(every, [*as_list(self.client_column), *as_list(self.cluster_column)], "A label column")
        names = [name for name in every if name not in labels]
        rows = self._rows(parts, y, weights, names)
        method = self.method
        shows = self.fit_intercept and family_named(family).overdispersion_shows
        told = shows or rows.levels or not rows.single_rows
        if method in FITTED and FITTED[method].learns and (len(rows) == 1 or not told):
            method = "pooled"  # a variance between clients cannot be learned from one client, or one row of each
        settings = {"weights": None if weights is None else "sample_weight"}
        asked: dict[str, Any] = {"family": family, "method": method, "seed": self.random_state}
        asked["splits"] = 5 if method == "auto" else 0
        asked |= {name: getattr(self, name) for name in ("covariance", "reml", "cluster_variance")}
        options = Options(shared=columns_named(every, as_list(self.shared), "shared"), **asked)
        formula = f"y ~ {' + '.join(['1' if self.fit_intercept else '0', *names])}"
        self.result_ = Fitting(rows, options, settings, {"design": None, "formula": formula}, start).result()
        first, m = int(self.fit_intercept), self.result_.model
        self.coef_: Floats = m.root[first:]
        self.intercept_: Any = float(m.root[0]) if first else 0.0
        self.clients_ = m.labels
        self.client_coef_: Floats = m.client[:, first:]
        self.client_intercept_: Floats = m.client[:, 0] if first else np.zeros(len(m.labels))
        return self

    def _rows(self, parts: Parts, y: Floats, weights: Floats | None, names: Sequence[str]) -> Clients:
        """The rows in the clients' order, with a column of ones: at most one copy of X."""
        X, n, first = parts.X, len(parts.X), int(self.fit_intercept)
        labels = np.zeros(n, dtype=np.int64) if parts.clients is None else parts.clients
        name = str(getattr(labels, "name", None) or "client")
        coded = {k: coded_labels(v, n, k) for k, v in cluster_columns(parts.clusters)}
        self._levels = list(coded)
        if name in coded:
            raise CoterieError(f"'{name}' names both the clients and their clusters: name another column for one.")
        coded[name] = coded_labels(labels, n, "clients")
        if weights is not None and weights.any() and not weights.all():  # a row of weight 0 is as good as not there
            some = np.flatnonzero(weights)
            X, y, weights, n = X[some], y[some], weights[some], len(some)
            coded = {k: column.take(some) for k, column in coded.items()}
        tree, notes = informative_tree(name, self._levels, coded)
        weights = np.ones(n) if weights is None else relative_weights(weights)
        terms = (*([INTERCEPT] if first else []), *names)
        design = X
        if first or not tree.presorted:
            design = np.empty((n, first + X.shape[1]))
            design[:, :first] = 1.0
            for start in range(0, n, _BLOCK):
                block = slice(start, start + _BLOCK)
                design[block, first:] = X[block if tree.presorted else tree.order[block]]
        rows = tree.clients(design, y[tree.order], np.zeros(n), weights[tree.order], terms, tree.order)
        return replace(rows, notes=tuple(notes))

    def _link(self, X: Any, clients: Any, clusters: Any) -> Floats:
        """Linear predictor (n,) of every row, by its client's coefficients or the finest known ancestor's."""
        check_is_fitted(self)
        parts = self._take_apart(X, clients, clusters, fitted=True)
        n = len(parts.X)
        labels = np.full(n, np.nan) if parts.clients is None else parts.clients
        above = at_levels(parts.clusters, self._levels)
        same_length({"clients": labels, **above}, n)
        return predict_rows(self.result_.model, parts.X, labels, above, type="link").prediction

    def _take_apart(self, X: Any, clients: Any, clusters: Any, fitted: bool = False) -> Parts:
        """The numbers and the labels of a call; labels may be columns of X. What is fitted is checked first."""
        for name, option in ({} if fitted else declared(type(self))).items():
            option.read(getattr(self, name))
        here = {"dtype": np.float64, "order": "C", "ensure_min_samples": 1 if fitted else 2}
        own, groups = as_list(self.client_column), as_list(self.cluster_column)
        if not own and not groups:
            return Parts(validate_data(self, X, reset=not fitted, **here), clients, clusters)
        if (own and clients is not None) or (groups and clusters is not None):
            raise CoterieError("Give labels as an argument or as a column of X, not both.")
        validate_data(self, X, reset=not fitted, skip_check_array=True)
        X, taken = take_columns(X, own, groups)
        clients = taken.pop(0) if own else clients
        if groups:
            clusters = taken[0] if len(taken) == 1 else together(taken)
        return Parts(check_array(X, estimator=self, input_name="X", **here), clients, clusters)


@dataclass(eq=False, repr=False)
class HierarchicalRegressor(RegressorMixin, _Hierarchical):
    """A model for each client: linear, or log-linear for counts, with coefficients tied by a tree of clusters.

    Parameters
    ----------
    family : str, default "gaussian"; or a name of ``families.FAMILIES`` that has no classes, such as "poisson"
    method : str, default "hierarchical"
        Also "local", "pooled", "own-intercept", "clusterwise", "single-cluster"; "auto" takes the one with the lowest
        held-out loss. Methods that learn variances are "pooled" where there is one client, or one row of each.
    covariance : {"auto", "isotropic", "two", "diagonal", "full"}, default "auto"
        How clients vary around their cluster.
    cluster_variance : {"common", "own"}, default "common"
        "own" gives each finest cluster its own client variances.
    shared : sequence of int or str, default ()
        Columns of X with one coefficient for all clients, by position or name.
    reml : bool, default True
        Restricted likelihood, for a Gaussian outcome.
    fit_intercept : bool, default True
        False fits X as it is, without a copy where it is C-contiguous float64 and sorted by cluster and client.
    client_column, cluster_column : int or str, optional
        Columns of X that hold labels; they are taken out of X. Several cluster columns, fine to coarse, as a list.
    random_state : int, default 0
        Seed of the splits of method "auto".

    Attributes
    ----------
    coef_ : (p,) array
        Global slopes.
    intercept_ : float
        Global intercept.
    clients_ : (m,) array
        Client labels.
    client_coef_ : (m, p) array
        Each client's own slopes.
    client_intercept_ : (m,) array
        Each client's own intercept.
    n_features_in_ : int
        Columns of X, label columns included.
    feature_names_in_ : array
        Their names, where X has some.
    result_ : FitResult
        Everything else: standard errors, variance components, the comparison of method "auto".
    """

    family: Annotated[str, Option("Of outcomes.", what=listed_names(classes=False), read=name_of_numbers)] = "gaussian"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = is_family(self.family) and family_named(self.family).lowest == 0.0
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None, clusters: Any = None, sample_weight: Any = None) -> Self:
        """Fit every client's coefficients.

        Parameters
        ----------
        X : (n, p) array or frame
        y : (n,) array
            Numbers; counts for family "poisson".
        clients : (n,) labels, optional
            Whose row it is; one client by default.
        clusters : (n,) labels or (n, L) labels, fine to coarse, optional
        sample_weight : (n,) array, optional; relative to its mean, not counts

        Returns
        -------
        self

        Raises
        ------
        CoterieError
            A ValueError, for whatever is wrong with the data or the parameters.
        """
        parts = self._take_apart(X, clients, clusters)
        values = check_array(_outcome(y, parts.X), dtype=np.float64, ensure_2d=False, input_name="y", estimator=self)
        if (below := values < (family := family_named(self.family)).lowest).any():
            raise CoterieError(f"Family {family} needs {family.outcome} or rates; y is negative in {at_rows(below)}.")
        if (none := (values == family.lowest) & ~family.possible(values)).any():
            raise CoterieError(f"Family {family} needs {family.needs}; y is {family.lowest:g} in {at_rows(none)}.")
        return self._fit(parts, values, _weights(sample_weight, parts.X), self.family)

    def predict(self, X: Any, clients: Any = None, clusters: Any = None) -> Floats:
        """Mean outcomes (n,).

        Parameters
        ----------
        X : (n, p) array or frame
        clients : (n,) labels, optional
            Clients that were not fitted, missing labels and no labels at all get their cluster's coefficients, then
            the global ones.
        clusters : like in :meth:`fit`, optional
        """
        return finite_mean(family_named(self.family), self._link(X, clients, clusters))

    def score(self, X: Any, y: Any, clients: Any = None, clusters: Any = None, sample_weight: Any = None) -> float:
        """R squared of predictions; for counts the share of the Poisson deviance that is explained."""
        predicted = self.predict(X, clients, clusters)
        if (family := family_named(self.family)).is_quadratic:
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=family.deviance_power))


class HierarchicalClassifier(ClassifierMixin, _Hierarchical):
    """One logistic model of two classes for every client, with coefficients tied by a tree of clusters.

    Parameters and attributes are those of :class:`HierarchicalRegressor`, without `family`; also

    Attributes
    ----------
    classes_ : (2,) array
        Class labels; the coefficients are for the second.
    coef_ : (1, p) array
        Global slopes, in the shape that scikit-learn gives them.
    intercept_ : (1,) array
        Global intercept.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None, clusters: Any = None, sample_weight: Any = None) -> Self:
        """Fit every client's coefficients; the arguments are those of :meth:`HierarchicalRegressor.fit`.

        Parameters
        ----------
        y : (n,) array
            Labels of two classes.
        """
        parts = self._take_apart(X, clients, clusters)
        y = _outcome(y, parts.X)
        check_classification_targets(y)
        weights = _weights(sample_weight, parts.X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) > 2:
            raise CoterieError(
                "Only binary classification is supported. The type of the target is multiclass: "
                f"y has {len(self.classes_)} classes."
            )
        used = np.unique(y if weights is None else y[weights > 0])
        if len(used) < 2:
            raise CoterieError(f"y holds one class only, {used[0]!s}; two are needed.")
        self._fit(parts, codes.astype(np.float64), weights, BINOMIAL.name)
        self.coef_, self.intercept_ = self.coef_[None], np.array([self.intercept_])
        return self

    def decision_function(self, X: Any, clients: Any = None, clusters: Any = None) -> Floats:
        """Log odds (n,) of the second class."""
        return self._link(X, clients, clusters)

    def predict_proba(self, X: Any, clients: Any = None, clusters: Any = None) -> Floats:
        """Probabilities (n, 2) of the classes; see :meth:`HierarchicalRegressor.predict` for unseen clients."""
        second = BINOMIAL.mean(self._link(X, clients, clusters))
        return np.column_stack([1.0 - second, second])

    def predict(self, X: Any, clients: Any = None, clusters: Any = None) -> npt.NDArray[Any]:
        """The likelier class (n,) of every row."""
        return np.asarray(np.where(self._link(X, clients, clusters) > 0, *self.classes_[::-1]))

    def score(self, X: Any, y: Any, clients: Any = None, clusters: Any = None, sample_weight: Any = None) -> float:
        """Share of rows whose class is predicted."""
        return float(accuracy_score(y, self.predict(X, clients, clusters), sample_weight=sample_weight))


def _outcome(y: Any, X: Floats) -> npt.NDArray[Any]:
    """One outcome for each row."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    check_consistent_length(X, values := column_or_1d(y, warn=True))
    return np.asarray(values)


def _weights(sample_weight: Any, X: Floats) -> Floats | None:
    if sample_weight is None:
        return None
    weights: Floats = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return weights
