"""Notes on shared and group-specific layers (paper 000): SGD on the augmented model ``[x_s, x_1, ..., x_k]``.

Clients of group G_g have the model [x_s, x_g]: some layers are common to all, the others to their group. With
``bar f_g = mean_{i in G_g} f_i`` the objective is ``f(x_s, x_1, ..., x_k) = sum_g |G_g| / n bar f_g(x_s, x_g)``, and

    d_{x_s} f = sum_g |G_g| / n d_{x_s} bar f_g(x_s, x_g),        d_{x_g} f = |G_g| / n d_{x_g} bar f_g(x_s, x_g).

Any layers may be shared, and the others may have other shapes in every group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.groups import group_gradients
from coterie.methods.groups import group_models as groups
from coterie.methods.local_training.client_work import Reply
from coterie.methods.local_training.rounds import LocalTraining, State, first_quarantine, patterns
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option
from coterie.relations.parameter_layout import GroupLayout


def augmented(layout: GroupLayout, parts: list[Floats], share: Floats, own: Floats) -> Floats:
    """The gradient of f (dim,) of groups' (d_g,): share (k,) is |G_g| / n; so is ``own``, or 1 as in FedAvg."""
    df = np.zeros(layout.dim, dtype=np.result_type(parts[0], np.float32))
    for g, df_g in enumerate(parts):
        at, s = layout.of_group(g), layout.of_group(g) < layout.shared
        df[at[s]] += share[g] * df_g[s]  # d_{x_s} f = sum_g |G_g| / n d_{x_s} bar f_g(x_s, x_g)
        df[at[~s]] = own[g] * df_g[~s]  # d_{x_g} f = |G_g| / n d_{x_g} bar f_g(x_s, x_g)
    return df


@work
def update(site: Site, weigh: str, local_steps: int, clusters: bool, width: int = 0, **sent: Any) -> Reply:
    """Steps on a client's own rows from [x_s, x_g]; with one, what is sent less where it began is -eta grad f_i.

    With a ``width`` models are that long, and zero at the end.
    """
    here = groups.round_of_groups(groups.padded(site, width), clusters, **sent)
    theta = here.train(steps=None if here.E else local_steps)
    return here.reply(theta, counts=groups.client_weights(here.site, weigh))


@dataclass(frozen=True, kw_only=True)
class GroupSGD(LocalTraining):
    """The notes' method with groups that are known.

    ``group`` (m,) is the group of every client from 0, by default its cluster. Groups of other architectures must be
    the clusters. "weighted" layers go by the gradient of f, |G| / n times the mean in the group; "averaged" ones by
    that mean, as in FedAvg. Stationary points are the same; what is no gradient, such as BatchNorm's statistics where
    they travel, is to be averaged.
    """

    joins: ClassVar[str] = "groups"
    EXCLUSIVE: ClassVar = (("tau", "E"),)
    shared: Annotated[tuple[str, ...], patterns("Layers x_s of all groups: () for none, ('*',) for all.")] = ()
    group: Any = None
    tau: Annotated[int | None, Option("Local steps in a round, by default one: a step of SGD on f.", low=1)] = None
    E: Annotated[int, Option("Instead of tau, passes over a client's rows in a round; 0 for none.", low=0)] = 0
    weigh: Annotated[Literal["clients", "rows"], Option("Whether clients count alike or by their rows.")] = "clients"
    own: Annotated[Literal["weighted", "averaged"], Option("How far groups' own layers go.")] = "weighted"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.E and self.tau is not None:
            raise CoterieError("Give tau, steps of a round, or E, passes over the rows: leave one of the two out.")

    @property
    def local_steps(self) -> int:
        """Steps of a round where no passes are asked for."""
        return 1 if self.tau is None else self.tau

    def groups(self, fed: Federation, state: Mapping[str, Any]) -> Ints:
        """Group of every client: the one that was found, is given, or its cluster."""
        return groups.group_of_clients(fed, state.get("group", self.group))

    def init(self, fed: Federation, w: npt.ArrayLike | None = None) -> State:
        """The state before the first round, at the augmented model w (dim,), by default as the objectives begin."""
        group = groups.group_of_clients(fed, self.group)
        layers = groups.agree_on_layers(fed, group, self.shared, self.transport, self.seed)
        by_cluster = np.array_equal(group, fed.clients.clusters)
        differ = len(set(layers.layout.sizes)) > 1
        if differ and not by_cluster:
            raise CoterieError("Groups of models that differ in size must be clusters.")
        other = len(set(np.diff(layers.whole.offsets))) > 1
        if other and self.compression.active and not layers.travels.values.all():
            raise CoterieError(
                "Models that differ in size and keep some numbers at home travel without codecs: leave up and down out."
            )
        state: State = first_quarantine(fed) | {"w": layers.start(w)}
        about: State = {"layout": layers.layout.arrays(), "weigh": self.weigh, "share": np.zeros(layers.layout.k)}
        if not layers.travels.values.all():
            about |= {"whole": layers.whole, "travels": layers.travels}
        return state | about

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """x + sum_g |G_g| / n (what group g's clients made of its model, less that model), at its place."""
        x, layout = state["w"], GroupLayout(**state["layout"])
        models = layout.models(x)
        message = groups.address(fed, self.groups(fed, state), models, to, self.compression.active)
        if self.compression.active and len(set(layout.sizes)) > 1:
            message["width"] = message["w"].value.shape[1]
        sums = self.exchange(fed, update, to, state, **message)
        share, moves = groups.group_means(sums, models)
        step = augmented(layout, moves, share, share if self.own == "weighted" else np.ones(layout.k))
        return sums, {"w": (x + step).astype(x.dtype), "share": share}

    def models(self, fed: Federation, state: State) -> Any:
        """Every client's model, (m, d), or Ragged where sizes differ; the first own layers where one is silent."""
        group, models = self.groups(fed, state), GroupLayout(**state["layout"]).models(state["w"])
        return groups.all_models(fed, group, models, state, self.transport)

    def measure(self, fed: Federation, state: State) -> dict[str, float]:
        """The groups' own gradients, their noise and the growth condition, as a point of a curve."""
        return group_gradients.point(group_gradients.look(fed, self, state, R=2 if self.B else 0))
