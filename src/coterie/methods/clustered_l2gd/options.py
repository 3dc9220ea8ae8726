"""What may be asked of a run over rounds; everything is chosen by theory where it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, nearest
from coterie.methods.clustered_l2gd.coordinator import NETWORKS, Majority, central

ONE_COIN = 0.1
"""Section 6's probability of a communication."""
LARGEST = 10**9
"""Steps, rows and seeds at most."""


@dataclass(frozen=True)
class Options:
    """Options of the methods over rounds.

    Attributes
    ----------
    steps : int, optional
        Iterations T; by default as many as theory wants for ``accuracy``, 100,000 at most.
    accuracy : float, default 1e-2
        Distance from the optimum, relative to that of the start.
    eta : float, optional
        Constant step size (Async-L2GD); by default Theorem 3.5's, then decreasing.
    p0, p : float; p also one for each cluster, optional
        Probabilities of rounds between and within clusters.
    probabilities : {"own", "common"}, default "own"
        Own p_j minimise (3.3); common ones are those of Corollaries 3.6 and 4.4.
    one_coin : bool, default False
        The variant of section 6: no rounds within clusters; p0 is 0.1 where it is not given.
    rho : float, optional
        How often Async-AL2SGD+ refreshes its anchor; by default for fewest communications.
    paper : bool, default False
        Async-AL2SGD+ with the step sizes that Theorem 4.3 prints, not the larger ones that its proof admits.
    batch : int, optional
        Rows of a local step, drawn with replacement; 0 takes all (Async-L2GD's default), 1 is Async-AL2SGD+'s.
    coordinator : {"central", "peers"}, default "central"
        Who draws the global coin and averages.
    network : {"all-to-all", "ring"}, default "all-to-all"
        How peers average.
    ties : {"tails", "heads"}, default "tails"
        How a tied vote of peers falls.
    looks : int, default 50
        Stops on the way, and as many closer at the beginning: for the trace, for a smaller step size where it
        decreases, and to return to from a divergence. Each costs two exchanges.
    seed : int, default 0
        Of coins and rows.
    """

    steps: int | None = None
    accuracy: float = 1e-2
    eta: float | None = None
    p0: float | None = None
    p: npt.ArrayLike | None = None
    probabilities: str = "own"
    one_coin: bool = False
    rho: float | None = None
    paper: bool = False
    batch: int | None = None
    coordinator: str = "central"
    network: str = "all-to-all"
    ties: str = "tails"
    looks: int = 50
    seed: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                raise CoterieError(
                    f"Rounds have no option {name!r}.{nearest(name, names)} There are {', '.join(names)}."
                )
        return cls(**given)

    def __post_init__(self) -> None:
        for name, values in (
            ("probabilities", ("own", "common")),
            ("coordinator", ("central", "peers")),
            ("network", tuple(NETWORKS)),
            ("ties", ("tails", "heads")),
        ):
            if (value := getattr(self, name)) not in values:
                raise CoterieError(f"{name} of rounds must be {' or '.join(values)}, not {value!r}.")
        for name, least in (("steps", 1), ("batch", 0), ("looks", 1), ("seed", 0)):
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not (whole and least <= value <= LARGEST) and not (value is None and name in ("steps", "batch")):
                raise CoterieError(
                    f"{name} of rounds must be a whole number from {least} to {LARGEST:,}, not {value!r}."
                )
        for name, value in (("accuracy", self.accuracy), ("eta", self.eta), ("p0", self.p0), ("rho", self.rho)):
            if value is not None and not (isinstance(value, (int, float, np.number)) and np.isfinite(value)):
                raise CoterieError(f"{name} of rounds must be a number, not {value!r}.")
        try:
            np.asarray(0.0 if self.p is None else self.p, dtype=np.float64)
        except (TypeError, ValueError) as e:
            raise CoterieError(f"p of rounds must be a number, or one for each cluster, not {self.p!r}.") from e
        for name in ("one_coin", "paper"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise CoterieError(f"{name} of rounds must be True or False, not {getattr(self, name)!r}.")
        if self.one_coin and self.p is not None:
            raise CoterieError("one_coin of rounds has no rounds within clusters: leave p out.")
        if self.coordinator == "central" and (self.network, self.ties) != ("all-to-all", "tails"):
            raise CoterieError("network and ties are options of peers: give coordinator='peers', or leave them out.")
        if not 0.0 < self.accuracy < 1.0:
            raise CoterieError(f"accuracy of rounds must lie between 0 and 1, not {self.accuracy:g}.")

    def check(self, accelerated: bool, k: int) -> None:
        """Raise for options of the other algorithm, and for p that are not those of k clusters."""
        for name in ("eta",) if accelerated else ("rho", "paper"):
            if getattr(self, name) is not None and getattr(self, name) is not False:
                raise CoterieError(
                    f"{name} is an option of {'async-l2gd' if accelerated else 'async-al2sgd'}: leave it out here"
                    f"{', the step is chosen with the momentum' if accelerated else ''}."
                )
        if self.p is not None and np.shape(self.p) not in ((), (k,)):
            raise CoterieError(f"p of rounds must be one number, or {k}: one for each cluster, not {np.size(self.p)}.")

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
        return {"vote": Majority(p0, k, self.ties), "network": NETWORKS[self.network]}  # type: ignore[arg-type]
