"""What may be asked of a run over rounds; everything is chosen by theory where it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, nearest
from coterie.methods.heads import central
from coterie.methods.peers import NETWORKS, Majority


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
        for name, least in (("steps", 1), ("batch", 0), ("seed", None)):
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if value is not None and not (whole and (least is None or value >= least)):
                raise CoterieError(f"{name} of rounds must be a whole number{_from(least)}, not {value!r}.")
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

    def peers(self, p0: float, k: int) -> dict[str, Any]:
        """Who draws the coin and averages, for the methods."""
        if self.coordinator == "central":
            return {"vote": None, "network": central}
        return {"vote": Majority(p0, k, self.ties), "network": NETWORKS[self.network]}  # type: ignore[arg-type]


def _from(least: int | None) -> str:
    return "" if least is None else f" from {least}"
