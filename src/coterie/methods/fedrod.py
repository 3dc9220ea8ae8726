"""Chen, Chao (2022), On bridging generic and personalized federated learning for image classification: FedROD.

All share a body and a head G, which are trained on the balanced softmax (scores plus the logarithms of a client's own
shares of classes), so that no client's classes bend them; beside G every client has a head P of its own, which learns
from its rows what to add to G's scores. Where heads are linear, the scores of both are those of the sum of both.
(PFLlib begins P at the first G; here it is zero.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, columns, train
from coterie.methods.local_training.rounds import LocalTraining, Passes, patterns
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.objectives.parameters import parameter_mask, statistics_mask

ABSENT = -1e4  # the logarithm of the share of a class without rows
NO_HEAD = (
    " needs a net for classes (cross-entropy) whose head is one linear layer with a bias: name both in head, and the "
    "bias in bias."
)


def named(site: Site, layers: list[str]) -> Bools:
    """Which parameters (d,) layers name, but for those that the objective keeps."""
    return parameter_mask(site.objective, layers) & ~parameter_mask(site.objective)


def class_shares(site: Site, theta: Floats, head: Bools, bias: Bools, new: Bools) -> Floats:
    """New clients' shares of classes (m, K): without a head all have 1 / K, and the bias' gradient is the rest."""
    start, o = np.where(head, 0.0, theta).astype(theta.dtype, copy=False), site.objective
    if getattr(getattr(o, "training", None), "clip", None) is None:
        g = start[:, bias] - train(site, start, 1.0, 1 * new, 0, 0, on=1.0 * bias, plain=True)[:, bias]
    else:  # of steps, the gradient is shortened
        g = gradient(o, start, Draws.of_all(len(site)))[:, bias]
        site.count(gradients=int(new.sum()))
    shares = 1.0 / max(bias.sum(), 1) - g.astype(np.float64)
    if not bias.any() or (np.abs(shares.sum(axis=1) - 1.0) > 1e-4).any() or (shares < -1e-4).any():
        raise CoterieError("FedROD" + NO_HEAD)
    return np.asarray(np.where(shares > 1e-5, shares, 0.0))


@work
def update(site: Site, head: list[str], bias: list[str], **sent: Any) -> Reply:
    """Steps of body and G on the balanced softmax and of P on the plain one, side by side."""
    here = LocalRound(site, **sent)
    theta = here.start
    both, b, still = named(site, head), named(site, bias), statistics_mask(site.objective)
    new, shares = ~site.state.written("shares"), site.state.get("shares", np.zeros((len(site), int(b.sum()))))
    if new.any():
        shares = np.where(new[:, None], class_shares(site, theta, both, b, new), shares)
    site.state["shares"] = shares
    prior = np.where(shares > 0.0, np.log(np.maximum(shares, 1e-30)), ABSENT)
    before = site.state.get("own", np.zeros((len(site), int(both.sum())), dtype=theta.dtype))
    parts = [prior, columns(theta, ~still), before, columns(theta, still)]
    which = np.repeat(["prior", "w", "P", "w"], [part.shape[1] for part in parts])
    two, how = site.objective.with_own_head(head, bias), {"on": 1.0 * (which != "prior"), "apart": which == "P"}
    end = here.train(np.concatenate(parts, axis=1, dtype=theta.dtype), objective=two, **how)
    return here.reply(columns(end, which == "w"), kept={"own": (columns(end, which == "P"), before)})


@work
def with_both_heads(site: Site, head: list[str], **sent: Any) -> Reply:
    """A client's model (m, d): its head is the sum of both, which is G where it never took part."""
    theta, both = np.array(LocalRound(site, **sent).start), named(site, head)
    theta[:, both] += site.state.get("own", np.zeros((len(site), int(both.sum())), dtype=theta.dtype))
    return {"theta": theta}


@dataclass(frozen=True, kw_only=True)
class FedROD(LocalTraining):
    """The paper's method with a linear P, for nets of classes; clients count by the weight of their rows."""

    joins: ClassVar[str] = "rounds"
    head: Annotated[tuple[str, ...], patterns("The head G, one linear layer, to whose scores P adds.")] = ("head*",)
    bias: Annotated[tuple[str, ...], patterns("Its bias, a number for each class.")] = ("head*bias",)
    E: Passes = 1
    update, model = staticmethod(update), staticmethod(with_both_heads)
