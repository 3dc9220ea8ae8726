"""What a fit is asked for, checked before any work; the command, its help and the documentation come from here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from coterie.data.splits import Splits
from coterie.errors import CoterieError, listed, nearest
from coterie.families import DEFAULT, FAMILIES, family_named, listed_names
from coterie.methods.registry import FITTED, METHODS
from coterie.options import Checked, Option, check, declared

_TABLE: dict[str, str] = {"group": "The table", "metavar": "COLUMN"}
_MODEL: dict[str, str] = {"group": "The model", "metavar": "NAME"}
_STRENGTHS: dict[str, str] = {"group": "Given strengths", "metavar": "NUMBERS"}
_TERMS: dict[str, str] = {"group": "The model", "metavar": "COLUMN"}
_ROUNDS: dict[str, str] = {"group": "Over rounds"}
_EVIDENCE: dict[str, str] = {"group": "The evidence"}
_BY: dict[str, str] = {"group": "The evidence", "metavar": "COLUMN"}
_WHAT: dict[str, str] = {"group": "The table", "metavar": "WHAT"}
_ALONE = ", ".join(name for name, method in FITTED.items() if not method.asked)
_ASKED = ", ".join(name for name, method in FITTED.items() if method.asked)


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are: names, checked where it is read (:func:`coterie.data.prepare_table.prepare`)."""

    formula: Annotated[str, Option("'outcome ~ columns', as in R.", group="The table", metavar="FORMULA")]
    client: Annotated[str, Option("The column that says whose row it is.", **_TABLE)]
    cluster: Annotated[
        tuple[str, ...], Option("A column of known clusters of clients; several from fine to coarse.", **_TABLE)
    ] = ()
    offset: Annotated[str | None, Option("Added to the linear predictor as it is.", **_TABLE)] = None
    weights: Annotated[
        str | None, Option("Weights of the rows: precisions relative to their mean, not counts.", **_TABLE)
    ] = None
    missing: Annotated[
        Literal["error", "drop"],
        Option(
            "error, or drop: what to do with rows that have missing or infinite values in columns that are used.",
            **_WHAT,
        ),
    ] = "error"


@dataclass(frozen=True)
class Options:
    """What a fit is asked for, beside its table; see :func:`coterie.fit`.

    ``strengths`` are those that are given, by name, each a list of candidates; ``order`` and ``groups`` are columns
    that rows are split by, sorted like the clients' rows; ``methods`` are those to compare, and ``each`` is how many
    rounds each has, and ``engine`` has the keys of an ``[engine]``.
    """

    family: Annotated[
        str,
        Option(
            f"{', '.join(f'{row.name} for {row.outcome}' for row in FAMILIES.values())}.",
            what=listed_names(),
            read=lambda name: str(family_named(name)),
            **_MODEL,
        ),
    ] = DEFAULT
    shared: Annotated[
        tuple[str, ...], Option("A term with one coefficient for all clients; several are allowed.", **_TERMS)
    ] = ()
    covariance: Annotated[
        Literal["auto", "isotropic", "two", "diagonal", "full"],
        Option(
            "How clients vary: isotropic (one variance), two (one for intercepts, one for slopes), diagonal (one for "
            "each term), full (with correlations), or auto, which chooses by likelihood.",
            **_MODEL,
        ),
    ] = "auto"
    cluster_variance: Annotated[
        Literal["common", "own"],
        Option("common: clients vary alike in all clusters; own: each cluster has its own variances.", **_MODEL),
    ] = "common"
    method: Annotated[
        str,
        Option(
            f"{_ALONE}, or auto, which takes the one with the lowest held-out loss, or where that ignores the "
            f"clusters, one with them that may be as good; {_ASKED} are compared only if named, similarity-network "
            "also by --network.",
            choices=("auto", *FITTED),
            **_MODEL,
        ),
    ] = "auto"
    residual: Annotated[
        Literal["common", "by-client"],
        Option("common: one residual variance; by-client: one for each client (Gaussian only).", **_MODEL),
    ] = "common"
    reml: Annotated[
        bool, Option("Learn variances by restricted or by full maximum likelihood (Gaussian only).", group="The model")
    ] = True
    quadrature: Annotated[
        int | None,
        Option(
            "Points of adaptive Gauss-Hermite quadrature, for classes and counts of clients that differ in one term; 1 "
            "is Laplace's approximation. By default 25 where clients have few rows.",
            low=1,
            high=100,
            group="The model",
        ),
    ] = None
    gamma: Annotated[
        Any,
        Option(
            "Strength of the ties of clients to their cluster, given instead of learned: a number, or several with "
            "commas between them, from which held-out rows choose. Adds the method given-strengths.",
            **_STRENGTHS,
        ),
    ] = None
    lam: Annotated[
        Any,
        Option(
            "Strength of the ties of clusters to each other, beside --gamma; by default they are one. A number for all "
            "levels of clusters, or LEVEL=NUMBER for each with commas between them.",
            **_STRENGTHS,
        ),
    ] = None
    alpha: Annotated[Any, Option("Instead of --lam: from 0, clusters apart, to 1, no clusters.", **_STRENGTHS)] = None
    rounds: Annotated[
        dict[str, Any],
        Option(
            "How many rounds or steps (50), or an option of a method over rounds: steps=20000 or coordinator=peers of "
            "async-l2gd and async-al2sgd, alpha=0.3 or collaborators=5 of weighted-averaging and bias-correction, "
            "codec=tv:4 of similarity-network, rounds=50, eta=0.1 or lam=1 of ditto and others that train; several are "
            "allowed. Theory, or the smoothness of the losses, chooses what is left out.",
            **_ROUNDS,
        ),
    ] = field(default_factory=dict)
    network: Annotated[
        dict[str, Any] | None,
        Option(
            "Which clients are alike, for similarity-network: space=model, data or feature with k=NEIGHBOURS, "
            "covariates=COLUMN,COLUMN, or edges=FILE (two columns of clients, and a weight); lam=NUMBER is the "
            "strength of ties, which held-out rows choose otherwise, p=1, 2 or inf their norm; several are allowed.",
            group="Similarity network",
        ),
    ] = None
    splits: Annotated[int, Option("Repeated splits inside each client; 0 compares nothing.", low=0, **_EVIDENCE)] = 5
    test_fraction: Annotated[
        float, Option("Share of each client's rows held out.", above=0.0, below=1.0, metavar="SHARE", **_EVIDENCE)
    ] = 0.25
    order_by: Annotated[str | None, Option("Hold out each client's latest rows by this column (one split).", **_BY)] = (
        None
    )
    split_by: Annotated[
        str | None, Option("Keep rows with the same value, such as a person's, on one side of a split.", **_BY)
    ] = None
    given_split: Annotated[
        str | None,
        Option("Hold out the rows of which this column says test, or True (one split); others say train.", **_BY),
    ] = None
    seed: Annotated[int, Option("Of the splits, and of what methods over rounds draw.", **_EVIDENCE)] = 0
    strengths: dict[str, Any] = field(default_factory=dict)
    order: Any = None
    groups: Any = None
    given: Any = None
    methods: tuple[str, ...] = ()
    each: int | None = None
    engine: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.method, str):
            declared(Options)["method"].read(self.method)
        for name in self.asked:
            if (why := METHODS[name].not_for.get("table") if name in METHODS else None) is not None:
                raise CoterieError(why)
            if self.methods and name not in FITTED:
                raise CoterieError(f"There is no method '{name}' for a table.{nearest(name, FITTED)}")
        if isinstance(self.rounds, int) and not isinstance(self.rounds, bool):
            object.__setattr__(self, "each", self.rounds)
            object.__setattr__(self, "rounds", {} if self.methods or not self.asked else self.rounds_of(self.method))
        check(self)
        if self.residual == "by-client" and not family_named(self.family).has_dispersion:
            raise CoterieError(f"The {self.family} family has no residual variance: leave residual out.")
        if not (self.reml or family_named(self.family).has_dispersion):
            raise CoterieError(f"reml changes nothing for the {self.family} family: leave it out.")
        if self.quadrature is not None and family_named(self.family).has_dispersion:
            raise CoterieError(f"The {self.family} family's likelihood is known exactly: leave quadrature out.")
        for name in ("order_by", "split_by", "test_fraction"):
            if self.is_given("given_split") and self.is_given(name):
                raise CoterieError(f"given_split and {name} both say which rows are held out: name one.")
        for name in ("order_by", "split_by", "test_fraction", "given_split"):
            if self.splits == 0 and self.is_given(name):
                raise CoterieError(f"{name} changes nothing where splits is 0: ask for a split, or leave it out.")
        over = [name for name, method in FITTED.items() if method.rounds]
        if (self.rounds or self.each is not None) and not {*self.asked, *self.methods} & {*over, "all"}:
            raise CoterieError(f"rounds are options of the methods {listed(over, 6)}: name one as the method.")
        for name in set(self.asked) & set(over):
            FITTED[name].over_rounds(self.rounds_of(name))
        if self.network is not None:
            if self.asked and not any(FITTED[name].networked for name in self.asked):
                raise CoterieError(
                    f"Method '{self.method}' has no network: name similarity-network, or leave network out."
                )
            from coterie.methods.networks.options import Asked

            Asked.of(self.network)

    @property
    def asked(self) -> tuple[str, ...]:
        """The methods that are asked for by name."""
        return tuple(name for name in self.methods or (self.method,) if name not in ("auto", "all"))

    def rounds_of(self, name: str) -> dict[str, Any]:
        """Options over rounds of a method, where several may be compared."""
        return self.rounds if self.each is None else {FITTED[name].length: self.each}

    def drawn(self, name: str) -> dict[str, Any]:
        """The same with the seed of the call, which is also that of rows and coins where no other is given."""
        if not (FITTED[name].rounds and self.seed) or self.engine.get("seed") is not None:
            return self.rounds_of(name)
        return {"seed": self.seed} | self.rounds_of(name)

    @property
    def has_prior(self) -> bool:
        """Whether main clients are pulled to the pooled model, as `local` is not."""
        asked = self.rounds.get("prior", "auto")
        return family_named(self.family).needs_prior if asked == "auto" else asked not in ("none", 0)

    @property
    def by(self) -> dict[str, str]:
        """The columns that say which rows are held out, by the option that names each."""
        names = ("order_by", "split_by", "given_split")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def hold(self) -> Splits:
        """How rows are held out."""
        return Splits(self.splits, self.test_fraction, self.seed, self.order, self.groups, self.given)

    def unheeded(self, methods: Collection[str]) -> list[str]:
        """A sentence for each option that is given and that none of the methods takes."""
        given = [
            name
            for name in ("covariance", "reml", "cluster_variance", "residual", "quadrature", "shared")
            if self.is_given(name)
        ]
        found = []
        for name in [*given, *self.strengths]:
            key = "own" if name == "cluster_variance" else name
            taking = [n for n, m in FITTED.items() if key in m.takes and not (m.flat and key == "own")]
            taking = [n for n, m in FITTED.items() if m.divides] if name == "shared" else taking
            if not {*taking} & {*methods}:
                found.append(f"{name} changes nothing for the method {listed(methods)}; {listed(taking)} take it.")
        return found

    def is_given(self, name: str) -> bool:
        """Whether an option is not at its default."""
        return bool(getattr(self, name) != declared(Options)[name].default)

    @property
    def learning(self) -> dict[str, Any]:
        """Options of methods that learn variances."""
        own = self.cluster_variance == "own"
        kept = ("covariance", "reml", "residual", "quadrature")
        return {name: getattr(self, name) for name in kept} | {"own": own}


@dataclass(frozen=True)
class Prediction(Checked):
    """What a prediction is asked for; see :meth:`coterie.results.fit_result.FitResult.predict`."""

    interval: Annotated[
        float | None,
        Option(
            "Add lower and upper bounds that hold with this probability.",
            above=0.0,
            below=1.0,
            what="a probability between 0 and 1, such as 0.9",
            metavar="SHARE",
        ),
    ] = None
    interval_of: Annotated[
        Literal["auto", "mean", "outcome"],
        Option(
            "Whether bounds are of the mean or of a new outcome of the row's weight. auto: of an outcome for family "
            "gaussian, of the mean otherwise.",
            metavar="WHAT",
        ),
    ] = "auto"
    type: Annotated[Literal["response", "link"], Option("Means, or linear predictors.")] = "response"
    missing: Annotated[
        Literal["error", "empty"],
        Option(
            "error, or empty: what to do with rows that have missing or infinite values, or levels never seen, in "
            "columns that are used. Empty predictions have the reason in the column 'source'.",
            metavar="WHAT",
        ),
    ] = "error"
