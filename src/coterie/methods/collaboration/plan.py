"""What theory makes of the options of a main client's method: who collaborates, with what weights and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.bias_correction import BiasCorrection
from coterie.methods.collaboration.choice.choose import choose
from coterie.methods.collaboration.collaborative_sgd import CollaborativeSGD
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.curvature import curvature
from coterie.methods.collaboration.exchange import Exchange
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.needs import need_rows
from coterie.methods.collaboration.optimisers import OPTIMISERS
from coterie.methods.collaboration.options import Options
from coterie.methods.collaboration.rules.by_name import rules
from coterie.methods.collaboration.theory import bc_theory
from coterie.methods.rounds.plan import some
from coterie.methods.weighted_averaging import WeightedAveraging
from coterie.numerics.kernels import Floats, Ints

MOST = 2_000_000
"""Pairs at most, where all clients are to collaborate with all."""


@dataclass(frozen=True)
class Weights:
    """Who collaborates with whom, and how much it counts.

    Attributes
    ----------
    who : Collaborators
    alpha : (M,)
        0 for main clients without collaborators.
    noise, average : (M,)
        Variances of mean gradients: of main clients, and of what their collaborators say together.
    speedup : (M,)
        Predicted; NaN where it was not.
    """

    who: Collaborators
    alpha: Floats
    noise: Floats
    average: Floats
    speedup: Floats


@dataclass(frozen=True)
class Plan:
    """A method with its parameters; with what alpha (M,) averaging would end where it ends; what to say about it."""

    method: CollaborativeSGD
    goes: Floats
    about: dict[str, Any]


def weights(fed: Federation, metric: Metric, options: Options, corrected: bool) -> Weights:
    """Choose, or take, collaborators and their weights; a CoterieError where there is one client only.

    Bias correction takes the same collaborators, the most alike, and listens to the quiet ones more: its alpha and tau
    are dictated by variances alone (section 5.2).
    """
    n = len(fed.clients)
    if n < 2:
        raise CoterieError("There are no collaborators: there is one client only, so fit it alone.")
    main = np.arange(n) if options.main is None else np.asarray(options.main, dtype=np.int64)
    asked = _asked(fed, main, options)
    alike = options.within == "cluster"
    choice = choose(fed, metric, main, asked, options.collaborators, same_cluster=alike, keep=asked is not None)
    who, alpha, speedup = choice.who, choice.alpha, choice.speedup
    if asked is not None:
        who = asked
    elif corrected:
        who = Collaborators(main, who.of, who.who, bc_theory.best_tau(choice.noise[who.who], who.starts))
    average = np.bincount(who.of, who.tau**2 * choice.noise[who.who], minlength=len(main)).astype(np.float64)
    noise, helped = choice.noise[main], np.diff(who.starts) > 0
    if corrected:
        alpha = bc_theory.best_alpha(noise, average)
    if not isinstance(options.alpha, str):
        alpha, speedup = np.full(len(main), float(options.alpha)), np.full(len(main), np.nan)
    return Weights(who, np.where(helped, alpha, 0.0), noise, average, speedup)


def _asked(fed: Federation, main: Ints, options: Options) -> Collaborators | None:
    """Collaborators whose weights are given; None where they are to be chosen."""
    n = len(fed.clients)
    if isinstance(options.tau, str) and options.tau == "auto":
        return None
    if isinstance(options.tau, str):
        if len(main) * n > MOST:
            raise CoterieError(
                f"Equal weights of all would be {len(main) * n:,} pairs: let tau be chosen, or name them."
            )
        places = fed.clients.clusters if options.within == "cluster" else np.zeros(n, dtype=np.int64)
        of, who = np.nonzero(places[main][:, None] == places)
        of, who = of[who != main[of]], who[who != main[of]]
        return Collaborators(main, of, who, 1.0 / np.bincount(of, minlength=len(main))[of])
    everybody = Collaborators.of_all(options.tau, options.normalise)
    place = np.full(n, -1)
    place[main] = np.arange(len(main))
    at = np.flatnonzero(place[everybody.of] >= 0)
    if not len(at):
        raise CoterieError("tau gives these main clients no collaborators: name one at least.")
    at = at[np.argsort(place[everybody.of[at]], kind="stable")]
    return Collaborators(main, place[everybody.of[at]], everybody.who[at], everybody.tau[at])


def plan(fed: Federation, metric: Metric, options: Options, corrected: bool) -> Plan:
    """The method with weights, step size and, for bias correction, beta: theory's where they are not given."""
    need_rows(fed, options.batch)
    chosen = weights(fed, metric, options, corrected)
    who, alpha = chosen.who, chosen.alpha
    bent = curvature(fed, who, metric)
    L, delta = bent.smoothness(alpha), bent.delta_at_most
    most = bc_theory.largest_step(L, alpha, delta) if corrected else 1.0 / L
    eta = most / options.local if isinstance(options.eta, str) else np.full(len(alpha), float(options.eta))
    exchange = Exchange(
        who,
        metric,
        options.batch,
        options.local,
        rules(options.rule, corrected),
        options.participation,
        seed=options.seed,
    )
    common: dict[str, Any] = {"exchange": exchange, "alpha": alpha, "eta": eta}
    common["optimiser"] = OPTIMISERS[options.optimiser]()
    about: dict[str, Any] = {"steps": options.taken, "alpha": some(alpha), "eta": some(eta), "L": some(L)}
    about |= {
        "delta": some(bent.delta),
        "delta_at_most": some(delta),
        "collaborators": some(np.diff(who.starts)),
        "batch": options.batch,
    }
    about |= {"speedup": None if np.isnan(chosen.speedup).any() else some(chosen.speedup), "rule": options.rule}
    limit = "min(1 / (2 L), 1 / (sqrt(8) alpha delta)), of Theorem 5.2" if corrected else "1 / L, of Theorem 4.1"
    beyond = eta * options.local > most * (1.0 + 1e-9)
    about["uncovered"] = []
    if beyond.any():
        about["uncovered"].append(
            f"eta = {np.max(eta):.3g} is above {np.min(most[beyond]):.3g}, the largest step of theory ({limit}), "
            f"for {np.sum(beyond):,} of {len(eta):,} main clients: nothing is promised of their runs."
        )
    if not corrected:
        return Plan(WeightedAveraging(**common), alpha, about)
    beta: Any = options.beta
    if isinstance(beta, str):
        beta = bc_theory.best_beta(eta, delta, alpha, chosen.noise, chosen.average, options.taken)
    keep = float(options.keep)
    method = BiasCorrection(**common, beta=beta, first=options.first, keep=keep)
    about["uncovered"] += method.notes
    return Plan(method, keep * alpha, about | {"beta": some(beta), "keep": keep})
