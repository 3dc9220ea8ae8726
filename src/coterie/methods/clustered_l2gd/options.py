"""What may be asked of a run over rounds; everything is chosen by theory where it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd.cluster_rounds import NETWORKS, Majority, central
from coterie.options import Option, check, declared, of

ONE_COIN = 0.1  # section 6's probability of a communication
MOST = 10**9  # steps, rows and seeds at most


@dataclass(frozen=True)
class Options:
    """Options of the methods over rounds.

    By default there are as many steps as theory wants for ``accuracy``, 100,000 at most; eta is Theorem 3.5's, then
    decreasing; own p_j minimise (3.3), and common ones are those of Corollaries 3.6 and 4.4. ``one_coin`` is section
    6's variant, whose p0 is 0.1 where it is not given. ``paper`` takes the step sizes that Theorem 4.3 prints, not
    the larger ones that its proof admits. Looks are stops on the way, and as many closer at the beginning: for the
    trace, for a smaller step size where it decreases, and to return to from a divergence. Each costs two exchanges.
    """

    steps: Annotated[int | None, Option("Iterations T.", low=1, high=MOST)] = None
    accuracy: Annotated[
        float, Option("Distance from the optimum, relative to that of the start.", above=0.0, below=1.0)
    ] = 1e-2
    eta: Annotated[float | None, Option("Constant step size (Async-L2GD).", above=0.0)] = None
    p0: Annotated[float | None, Option("Probability of a round between clusters.", low=0.0, high=1.0)] = None
    p: Annotated[
        Any, Option("Probability of a round within clusters, or of each.", low=0.0, high=1.0, each="cluster")
    ] = None
    probabilities: Annotated[Literal["own", "common"], Option("Whether clusters have p of their own.")] = "own"
    one_coin: Annotated[bool, Option("No rounds within clusters.")] = False
    rho: Annotated[
        float | None,
        Option("How often Async-AL2SGD+ refreshes its anchor; else for fewest communications.", above=0.0, high=1.0),
    ] = None
    paper: Annotated[bool, Option("Async-AL2SGD+ with the step sizes as printed.")] = False
    batch: Annotated[
        int | None,
        Option(
            "Rows of a local step, drawn with replacement; 0 takes all, as Async-L2GD does; else 1.", low=0, high=MOST
        ),
    ] = None
    coordinator: Annotated[Literal["central", "peers"], Option("Who draws the global coin and averages.")] = "central"
    network: Annotated[str, Option("How peers average.", choices=NETWORKS)] = "all-to-all"
    ties: Annotated[Literal["tails", "heads"], Option("How a tied vote of peers falls.")] = "tails"
    looks: Annotated[int, Option("Stops on the way.", low=1, high=MOST)] = 50
    seed: Annotated[int, Option("Of coins and rows.", low=0, high=MOST)] = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        return of(cls, given, "Rounds")

    def __post_init__(self) -> None:
        check(self)
        if self.one_coin and self.p is not None:
            raise CoterieError("one_coin of rounds has no rounds within clusters: leave p out.")
        if self.coordinator == "central" and (self.network, self.ties) != ("all-to-all", "tails"):
            raise CoterieError("network and ties are options of peers: give coordinator='peers', or leave them out.")

    def check(self, accelerated: bool, k: int) -> None:
        """Raise for options of the other algorithm, and for p that are not those of k clusters."""
        for name in ("eta",) if accelerated else ("rho", "paper"):
            if getattr(self, name) is not None and getattr(self, name) is not False:
                raise CoterieError(
                    f"{name} is an option of {'async-l2gd' if accelerated else 'async-al2sgd'}: leave it out here"
                    f"{', the step is chosen with the momentum' if accelerated else ''}."
                )
        if self.p is not None:
            replace(declared(Options)["p"], name="p of rounds").at(self.p, 0, k)

    def check_nested(self) -> None:
        """Raise for options that are of one level of clusters."""
        if self.p0 is not None or self.p is not None or self.one_coin or self.probabilities == "common":
            raise CoterieError(
                "With several levels of clusters theory chooses the probabilities of the rounds of each: leave p0, p, "
                "one_coin and probabilities out of rounds, or name one level of clusters."
            )

    @property
    def probabilities_asked(self) -> tuple[float | None, npt.ArrayLike | None]:
        """p0 and p, where they are not to be chosen."""
        if self.one_coin:
            return (ONE_COIN if self.p0 is None else self.p0), 0.0
        return self.p0, self.p

    def rows(self, usual: int, most: int) -> int:
        """Rows of a local step; a CoterieError for more than ``most``, the rows of the largest client."""
        batch = usual if self.batch is None else int(self.batch)
        if batch > most:
            raise CoterieError(f"batch of rounds is {batch:,}, and no client has more than {most:,} rows: 0 takes all.")
        return batch

    def peers(self, p0: float, k: int) -> dict[str, Any]:
        """Who draws the coin and averages, for the methods."""
        if self.coordinator == "central":
            return {"vote": None, "network": central}
        return {"vote": Majority(p0, k, self.ties), "network": NETWORKS[self.network]}
