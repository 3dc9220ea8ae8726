"""Paper 000's open end "we don't know the groups in advance": groups are looked for first, then trained as if known.

Clients are put into groups by where some local steps from one model lead them, or by restarts of IFCA; from then on
this is ``GroupSGD`` with these groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.find import Groups, by_restarts, by_updates
from coterie.methods.ifca import IFCA
from coterie.methods.local_training.first_models import ask_first_models
from coterie.methods.local_training.rounds import State
from coterie.options import Option
from coterie.relations.parameter_layout import GroupLayout

MOST = 8  # groups that are tried where their number is not given
_AGAIN = ("by", ("restarts",))
FEWEST = 3  # clients that it takes to look for groups; fewer are one group


@dataclass(frozen=True, kw_only=True)
class FoundGroups(GroupSGD):
    """``GroupSGD`` with groups that are found before the first round.

    With k = 0 there is one group if clients do not differ beyond what their rows scatter, else 2 to 8, the number with
    the largest silhouette.
    """

    by: Annotated[Literal["updates", "restarts"], Option("Cluster first updates, or restart IFCA.")] = "updates"
    k: Annotated[int, Option("Number of groups; 0, for updates alone: as many as they show.", low=0)] = 0
    steps: Annotated[int, Option("Local steps that make an update, or the first models of a restart.", low=1)] = 50
    restarts: Annotated[int, Option("Restarts of IFCA.", low=1, beside=_AGAIN)] = 20
    rounds: Annotated[int, Option("Rounds of each restart.", low=1, beside=_AGAIN)] = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k == 0 and self.by == "restarts":
            raise CoterieError("Restarts of IFCA need a number of groups: give k, or look for groups by updates.")

    def init(self, fed: Federation, w: npt.ArrayLike | None = None) -> State:
        """The state before the first round: the groups found from one model w (d,), where all of them start, too."""
        start = ask_first_models(fed, self.transport, self.seeds, w)
        if w is not None:
            start.shared_layers(w)  # a CoterieError for what is no model
        model = start.whole(w)
        found = self._found(fed, model)
        group = np.where(found.labels < 0, np.argmax(found.sizes), found.labels)  # the silent go with the most
        state = GroupSGD.init(replace(self, group=group), fed)
        if w is not None:
            layout = GroupLayout(**state["layout"])
            for g in range(layout.k):
                state["w"][layout.of_group(g)] = model if "travels" not in state else model[state["travels"][g]]
        return state | {"group": group}

    def _found(self, fed: Federation, model: Any) -> Groups:
        eta, m = self.rate(0), len(fed.clients)
        if m < FEWEST:
            return Groups(np.zeros(m, dtype=np.int64))
        if self.by == "updates":
            many = range(1, MOST + 1) if self.k == 0 else self.k
            return by_updates(fed, model, eta=eta, steps=self.steps, k=many, B=self.B, seed=self.seed)
        ifca = IFCA(k=self.k, eta=eta, tau=self.local_steps, B=self.B, C=self.C, seed=self.seed, personal=self.personal)
        return by_restarts(fed, ifca, model, rounds=self.rounds, restarts=self.restarts, steps=self.steps)
