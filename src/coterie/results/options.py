"""What a fit is asked for, checked before any work; the command, its help and the documentation come from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from coterie.errors import CoterieError
from coterie.families import DEFAULT, FAMILIES, family_named
from coterie.methods.registry import FITTED
from coterie.options import Option, check

if TYPE_CHECKING:
    from coterie.results.compare import Splits


@dataclass(frozen=True)
class Options:
    """What a fit is asked for, beside its table; see :func:`coterie.fit`.

    ``strengths`` are those that are given, by name, each a list of candidates; ``order`` and ``groups`` are columns
    that rows are split by, sorted like the clients' rows.
    """

    family: Annotated[
        str,
        Option(f"{', '.join(f'{row.name} for {row.outcome}' for row in FAMILIES.values())}.", choices=FAMILIES),
    ] = DEFAULT
    shared: Annotated[tuple[str, ...], Option("Terms with one coefficient for all clients.")] = ()
    covariance: Annotated[
        Literal["auto", "isotropic", "two", "diagonal", "full"],
        Option(
            "How clients vary: isotropic (one variance), two (one for intercepts, one for slopes), diagonal (one for "
            "each term), full (with correlations), or auto, which chooses by likelihood."
        ),
    ] = "auto"
    cluster_variance: Annotated[
        Literal["common", "own"],
        Option("common: clients vary alike in all clusters; own: each cluster has its own variances."),
    ] = "common"
    method: Annotated[
        str,
        Option(
            "auto takes the one with the lowest held-out loss, or where that ignores the clusters, one with them that "
            "may be as good.",
            choices=("auto", *FITTED),
        ),
    ] = "auto"
    residual: Annotated[
        Literal["common", "by-client"],
        Option("common: one residual variance; by-client: one for each client (Gaussian only)."),
    ] = "common"
    reml: Annotated[bool, Option("Learn variances by restricted or by full maximum likelihood (Gaussian only).")] = True
    rounds: Annotated[
        dict[str, Any],
        Option(
            "Options of methods over rounds, such as steps=20000 or coordinator=peers, of weighted-averaging and "
            "bias-correction, such as alpha=0.3, or of similarity-network, such as codec=tv:4. Theory chooses what is "
            "left out.",
        ),
    ] = field(default_factory=dict)
    network: Annotated[
        dict[str, Any] | None,
        Option(
            "Which clients are alike, for similarity-network: space=model, data or feature with k=NEIGHBOURS, "
            "covariates=COLUMN,COLUMN, or edges; lam is the strength of ties, which held-out rows choose otherwise, "
            "p=1, 2 or inf their norm."
        ),
    ] = None
    splits: Annotated[int, Option("Repeated splits inside each client; 0 compares nothing.", low=0)] = 5
    test_fraction: Annotated[float, Option("Share of each client's rows held out.", above=0.0, below=1.0)] = 0.25
    seed: Annotated[int, Option("Of the splits.")] = 0
    strengths: dict[str, Any] = field(default_factory=dict)
    order: Any = None
    groups: Any = None

    def __post_init__(self) -> None:
        check(self)
        if self.residual == "by-client" and not family_named(self.family).has_dispersion:
            raise CoterieError(f"The {self.family} family has no residual variance: leave residual out.")
        over = [name for name, method in FITTED.items() if method.rounds]
        if self.rounds and self.method not in over:
            raise CoterieError(f"rounds are options of the methods {', '.join(over)}: name one as the method.")
        if self.method in over:
            FITTED[self.method].over_rounds(self.rounds)
        if self.network is not None:
            if self.method != "auto" and not FITTED[self.method].networked:
                raise CoterieError(
                    f"Method '{self.method}' has no network: name similarity-network, or leave network out."
                )
            from coterie.methods.network.options import Asked

            Asked.of(self.network)

    @property
    def hold(self) -> Splits:
        """How rows are held out."""
        from coterie.results.compare import Splits

        return Splits(self.splits, self.test_fraction, self.seed, self.order, self.groups)

    @property
    def learning(self) -> dict[str, Any]:
        """Options of methods that learn variances."""
        return {
            "covariance": self.covariance,
            "reml": self.reml,
            "own": self.cluster_variance == "own",
            "residual": self.residual,
        }
