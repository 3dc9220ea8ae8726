"""Li, He, Song (2021), Model-contrastive federated learning, Algorithm 1: MOON.

FedAvg whose local steps also draw the features z of a row to z_glob, those of the model that was sent, and away from
z_prev, those of the client's model of the last round it took part in: beside the loss stands ``-mu log(exp(cos(z,
z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)))``. (PFLlib takes z_glob and z_prev in training
mode; here, as in the authors' code, it is evaluation mode.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, features
from coterie.methods.local_training.rounds import LocalTraining, Passes, patterns
from coterie.objectives.gradient_steps import FeatureTerm
from coterie.options import Option


@work
def update(site: Site, head: list[str], mu: float, tau: float, **sent: Any) -> Reply:
    """PartyLocalTraining; the first time z_prev is z_glob, and nothing is drawn anywhere."""
    here = LocalRound(site, **sent)
    before = site.state.get("theta", here.start)
    z = np.stack([features(site, theta, head) for theta in (here.start, before)], axis=1)
    beside = FeatureTerm("contrast", tuple(head), mu, z, np.ones(len(z)), tau)
    theta = here.train(beside=beside)
    return here.reply(theta, kept={"theta": (theta, before)})


@dataclass(frozen=True, kw_only=True)
class MOON(LocalTraining):
    """Algorithm 1; clients count by the weight of their rows. Features are what the layers ``head`` are given."""

    joins: ClassVar[str] = "steps"
    head: Annotated[tuple[str, ...], patterns("The layers above the features.")] = ("head*",)
    mu: Annotated[float, Option("What the contrast of features counts beside the loss.", low=0.0)] = 1.0
    tau: Annotated[float, Option("Its temperature.", above=0.0)] = 0.5
    E: Passes = 1
    update = staticmethod(update)
