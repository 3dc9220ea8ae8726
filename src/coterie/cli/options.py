"""Options that `coterie fit` and `coterie compare` share; each is an argument of :func:`coterie.fit` of that name."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from coterie.errors import CoterieError
from coterie.families import FAMILIES

_TABLE, _MODEL, _STRENGTHS, _EVIDENCE = "The table", "The model", "Given strengths", "The evidence"
_ROUNDS, _NETWORK = "Over rounds", "Similarity network"

Formula = Annotated[
    str, Option("--formula", metavar="FORMULA", help="'outcome ~ columns', as in R.", rich_help_panel=_TABLE)
]
Client = Annotated[
    str, Option("--client", metavar="COLUMN", help="The column that says whose row it is.", rich_help_panel=_TABLE)
]
Cluster = Annotated[
    list[str] | None,
    Option(
        "--cluster",
        metavar="COLUMN",
        help="A column of known clusters of clients; several from fine to coarse.",
        rich_help_panel=_TABLE,
    ),
]
Offset = Annotated[
    str | None,
    Option("--offset", metavar="COLUMN", help="Added to the linear predictor as it is.", rich_help_panel=_TABLE),
]
Weights = Annotated[
    str | None,
    Option(
        "--weights",
        metavar="COLUMN",
        help="Weights of the rows: precisions relative to their mean, not counts.",
        rich_help_panel=_TABLE,
    ),
]
Missing = Annotated[
    str,
    Option(
        "--missing",
        metavar="WHAT",
        help="error, or drop: what to do with rows that have missing or infinite values in columns that are used.",
        rich_help_panel=_TABLE,
    ),
]
NaValue = Annotated[
    list[str] | None,
    Option(
        "--na-value",
        metavar="TEXT",
        help="Text of a CSV that means a missing value, besides empty cells; several are allowed. By default NA, null, "
        "nan, None and the like; '' alone takes only empty cells as missing.",
        rich_help_panel=_TABLE,
    ),
]
Family = Annotated[
    str,
    Option(
        "--family",
        metavar="NAME",
        help=f"{', '.join(f'{row.name} for {row.outcome}' for row in FAMILIES.values())}.",
        rich_help_panel=_MODEL,
    ),
]
Shared = Annotated[
    list[str] | None,
    Option(
        "--shared",
        metavar="COLUMN",
        help="A term with one coefficient for all clients; several are allowed.",
        rich_help_panel=_MODEL,
    ),
]
Covariance = Annotated[
    str,
    Option(
        "--covariance",
        metavar="NAME",
        help="How clients vary: isotropic (one variance), two (one for intercepts, one for slopes), diagonal (one for "
        "each term), full (with correlations), or auto, which chooses by likelihood.",
        rich_help_panel=_MODEL,
    ),
]
ClusterVariance = Annotated[
    str,
    Option(
        "--cluster-variance",
        metavar="NAME",
        help="common: clients vary alike in all clusters; own: each cluster has its own variances.",
        rich_help_panel=_MODEL,
    ),
]
Residual = Annotated[
    str,
    Option(
        "--residual",
        metavar="NAME",
        help="common: one residual variance; by-client: one for each client (Gaussian only).",
        rich_help_panel=_MODEL,
    ),
]
Method = Annotated[
    str,
    Option(
        "--method",
        metavar="NAME",
        help="hierarchical, local, pooled, own-intercept, clusterwise, single-cluster, given-strengths (by --gamma), "
        "or auto, which takes the one with the lowest held-out loss, or where that ignores the clusters, one with "
        "them that may be as good; james-stein, async-l2gd, async-al2sgd, "
        "weighted-averaging and bias-correction are compared only if named, similarity-network also by --network.",
        rich_help_panel=_MODEL,
    ),
]
Reml = Annotated[
    bool,
    Option(
        "--reml/--ml",
        help="Learn variances by restricted or by full maximum likelihood (Gaussian only).",
        rich_help_panel=_MODEL,
    ),
]
Gamma = Annotated[
    str | None,
    Option(
        "--gamma",
        metavar="NUMBERS",
        help="Strength of the ties of clients to their cluster, given instead of learned: a number, or several with "
        "commas between them, from which held-out rows choose. Adds the method given-strengths.",
        rich_help_panel=_STRENGTHS,
    ),
]
Lam = Annotated[
    str | None,
    Option(
        "--lam",
        metavar="NUMBERS",
        help="Strength of the ties of clusters to each other, beside --gamma; by default they are one. A number for "
        "all levels of clusters, or LEVEL=NUMBER for each with commas between them.",
        rich_help_panel=_STRENGTHS,
    ),
]
Alpha = Annotated[
    str | None,
    Option(
        "--alpha",
        metavar="NUMBERS",
        help="Instead of --lam: from 0, clusters apart, to 1, no clusters.",
        rich_help_panel=_STRENGTHS,
    ),
]
Rounds = Annotated[
    list[str] | None,
    Option(
        "--rounds",
        metavar="NAME=VALUE",
        help="An option of async-l2gd and async-al2sgd, such as steps=20000 or coordinator=peers, or of "
        "weighted-averaging and bias-correction, such as alpha=0.3 or collaborators=5, or of similarity-network, such "
        "as codec=tv:4; several are allowed. Theory chooses what is left out.",
        rich_help_panel=_ROUNDS,
    ),
]
BytesPerUpdate = Annotated[
    int | None,
    Option(
        "--bytes-per-update",
        metavar="N",
        help="Let similarity-network compress every update of a client to so many bytes.",
        rich_help_panel=_ROUNDS,
    ),
]
Network = Annotated[
    list[str] | None,
    Option(
        "--network",
        metavar="NAME=VALUE",
        help="Which clients are alike, for similarity-network: space=model, data or feature with k=NEIGHBOURS, "
        "covariates=COLUMN,COLUMN, or edges=FILE (two columns of clients, and a weight); lam=NUMBER is the strength of "
        "ties, which held-out rows choose otherwise, p=1, 2 or inf their norm; several are allowed.",
        rich_help_panel=_NETWORK,
    ),
]
Splits = Annotated[
    int,
    Option(
        "--splits",
        metavar="N",
        help="Repeated splits inside each client; 0 compares nothing.",
        rich_help_panel=_EVIDENCE,
    ),
]
TestFraction = Annotated[
    float,
    Option("--test-fraction", metavar="SHARE", help="Share of each client's rows held out.", rich_help_panel=_EVIDENCE),
]
OrderBy = Annotated[
    str | None,
    Option(
        "--order-by",
        metavar="COLUMN",
        help="Hold out each client's latest rows by this column (one split).",
        rich_help_panel=_EVIDENCE,
    ),
]
SplitBy = Annotated[
    str | None,
    Option(
        "--split-by",
        metavar="COLUMN",
        help="Keep rows with the same value, such as a person's, on one side of a split.",
        rich_help_panel=_EVIDENCE,
    ),
]
Seed = Annotated[int, Option("--seed", metavar="N", help="Of the splits.", rich_help_panel=_EVIDENCE)]


def numbers(option: str, text: str | None) -> float | list[float] | dict[str, float] | None:
    """A number; a list of them (a grid) where there are commas; or one for each level, as ``LEVEL=NUMBER``."""
    if text is None:
        return None
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        values = [float(number) for _, _, number in parts]
    except ValueError as e:
        raise CoterieError(f"{option} takes a number, or several with commas between them, not '{text}'.") from e
    named = {name.strip(): v for (name, _, _), v in zip(parts, values, strict=True)}
    if any(sign for _, sign, _ in parts):
        if len(named) < len(parts) or "" in named:
            raise CoterieError(
                f"{option} takes LEVEL=NUMBER once for each level, with commas between them, not '{text}'."
            )
        return named
    return values if len(values) > 1 else values[0]


def na_values(texts: list[str] | None) -> list[str] | None:
    """What --na-value says to :func:`coterie.read_table`; None where nothing was said."""
    return [text for text in texts if text] if texts else None


def assignments(option: str, texts: list[str] | None, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """What ``NAME=VALUE`` says: numbers, lists of them where there are commas, True and False, or text.

    Values of ``names`` stay text, as names of columns; ``edges`` names a file, and is left as it is.
    """
    out: dict[str, Any] = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not value.strip():
            example = "k=5" if option == "--network" else "steps=20000"
            raise CoterieError(f"{option} takes NAME=VALUE, such as {example}, not '{text}'.")
        if name in out:
            raise CoterieError(f"{option} gives {name} twice.")
        if name == "edges":
            out[name] = value.strip()
            continue
        parts = [part.strip() for part in value.split(",")]
        if "" in parts:
            raise CoterieError(f"{option} has an empty value between commas in '{text}'.")
        read = parts if name in names else [_value(part) for part in parts]
        out[name] = read if len(read) > 1 else read[0]
    return out


def _value(text: str) -> Any:
    """A number (whole ones as such, 1e4 too), a truth value or text."""
    try:
        number = float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    return int(number) if number.is_integer() else number
