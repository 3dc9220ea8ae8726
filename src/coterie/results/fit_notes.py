"""What the data cannot tell of a fit, and what was found in it, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.design import INTERCEPT
from coterie.errors import joined, plural
from coterie.methods.local import LIGHT
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.registry import FITTED
from coterie.methods.tree.covariance_structure import at_means
from coterie.methods.tree.dispersion import said_of
from coterie.methods.tree.variances import PRIOR_ROWS
from coterie.numerics.arrays import Floats

FAR = 0.01
"""Share of its way that a run may be short of without a word."""
STILL = 0.005
"""Share of their way that models may move in the last twentieth of the rounds without a word."""
ILL = 1e6
"""Condition number above which more steps are no remedy."""


def before(clients: Clients, problem: GroupedProblem, auto_shared: list[str], asked: str = "auto") -> list[str]:
    """What a table cannot identify, for the method ``asked`` for."""
    notes = list(clients.notes)
    if auto_shared:
        has = "has one coefficient" if len(auto_shared) == 1 else "have one coefficient each"
        within = clients.levels[0].name if problem.single_rows and clients.levels else "client"
        notes.append(
            f"{_names(auto_shared)} {has} for all clients ({clients.name}): within a {within} nothing varies there "
            "that other columns do not tell."
        )
    if len(clients) == 1:
        notes.append(f"There is one client only ({clients.name}): nothing can be said of how clients differ.")
    elif problem.single_rows:
        notes.append(_of_single_rows(clients, problem, asked))
    light = int(np.sum((clients.weights > 0.0) & (clients.weights < LIGHT)))
    if problem.family.has_dispersion and 10 * light > len(clients.weights):
        notes.append(
            f"{light:,} of {plural(len(clients.weights), 'row')} have a weight below {LIGHT:g} of the mean, which "
            f"says that their outcomes scatter more than {LIGHT**-0.5:.0f} times as widely as others'. Where they do "
            "not, the residual variance comes out too small: leave such rows out."
        )
    for level in clients.levels:
        if len(level.labels) == 1:
            notes.append(
                f"There is one {level.name} only ({level.labels[0]}): a variance between them is not identified."
            )
    if problem.family.boundary and not problem.single_rows and len(clients.y):
        high = np.maximum.reduceat(clients.y, clients.starts)
        low = np.minimum.reduceat(clients.y, clients.starts)
        single = int(np.sum((low == high) & np.isin(high, problem.family.boundary)))
        if single:
            notes.append(
                f"{single:,} of {plural(len(clients), 'client')} ({clients.name}) have {problem.family.alike}; the "
                "penalty keeps their coefficients finite."
            )
    return notes


def _singular(D: Floats, columns: Any, terms: tuple[str, ...]) -> str | None:
    """What correlations of one say, where variances are not zero."""
    for one in D:
        sd = np.sqrt(np.maximum(np.diag(one), 0.0))
        some = [int(j) for j in columns if sd[j] > 0.0]
        r = one[np.ix_(some, some)] / np.outer(sd[some], sd[some])
        if len(some) < 2 or np.linalg.eigvalsh(r)[0] > 1e-5:
            continue
        pairs = [(i, j) for j in range(len(some)) for i in range(j) if abs(r[i, j]) > 1.0 - 1e-5]
        if not pairs:
            return (
                f"how they differ in {_names([terms[j] for j in some])} is found in fewer directions than there are "
                "terms (a singular fit): there are too few of them, or of their rows, to tell all correlations."
            )
        i, j = pairs[0]
        sign = "1" if r[i, j] > 0 else "-1"
        return (
            f"differences in {_names([terms[some[i]], terms[some[j]]])} have a correlation of {sign}, the end of what "
            "is possible (a singular fit): there are too few of them, or of their rows, to tell the correlation."
        )
    return None


def _far_from_zero(
    terms: tuple[str, ...], mean: Floats, sd: Floats, problem: GroupedProblem, info: Mapping[str, Any]
) -> str | None:
    """Which columns' zeros a named structure depends on, where these are far from all rows."""
    if "centred" in info or problem.intercept not in problem.personal:
        return None
    far = [terms[j] for j in problem.personal if j != problem.intercept and abs(mean[j]) > 5.0 * sd[j]]
    if not far:
        return None
    return (
        f"The covariance '{info['covariance']}' is one of the columns as they are, so it depends on where "
        f"{_names(far)} {'has its' if len(far) == 1 else 'have their'} zero, "
        "which is far from all rows: subtract the mean, or take 'auto' or 'full', which do not depend on it."
    )


def _of_single_rows(clients: Clients, problem: GroupedProblem, asked: str) -> str:
    """What one row for each client says of how clients differ."""
    one = f"Every client ({clients.name}) has one row"
    if len(problem.straying):
        told = "from counts that scatter more than Poisson's"
        if problem.family.scatters:
            told = f"which family {problem.family.name} hardly tells from its dispersion"
        return f"{one}: how clients differ is learned of their intercepts, {told}."
    why = ", so the variance between clients cannot be told from the variance within"
    if problem.family.two_classes:
        why = ", and a 0 or 1 alone says nothing of how clients differ"
    if problem.learnable and asked not in ("pooled", "local"):
        both = "the residual variance holds both, and " if problem.family.has_dispersion else ""
        return f"{one}{why}: {both}every client has the model of its {clients.levels[0].name}."
    return f"{one}{why}: no variances are reported{', and one model serves all' * (asked in ('auto', 'pooled'))}."


def _digits(sigma2: float, total: float) -> list[str]:
    """What sums of squares lose of a residual variance that is next to nothing of the outcome's."""
    if sigma2 <= 1e-12 * total:
        return [
            "The columns give the outcome to six digits or more: what is left of it, and with that standard errors and "
            "likelihood, may be rounding."
        ]
    if sigma2 > 1e-9 * total:
        return []
    return [
        f"The columns give the outcome but for {sigma2 / total:.0e} of its variance: about "
        f"{plural(15 + int(np.log10(sigma2 / total)), 'digit')} of the residual variance, and with it of standard "
        "errors and likelihood, are known, and the rest is rounding."
    ]


def after(
    clients: Clients, problem: GroupedProblem, name: str, fitted: Estimates, spread: tuple[Floats, Floats] | None = None
) -> list[str]:
    """What was found: variances of zero, separation, a search that stopped early.

    Clients without rows, as sites describe theirs, leave out what only rows can say. ``spread`` has the means and
    standard deviations (p,) of their columns.
    """
    notes, rows, terms = list[str](), len(clients.X) > 0, clients.terms
    mean, sd = clients.spread if spread is None else spread
    if problem.family.boundary:
        frame = np.diag(np.where(sd > 0.0, sd, np.abs(mean)))
        if INTERCEPT in terms:  # at the means, so that it does not depend on where columns have their zero
            frame[terms.index(INTERCEPT)] = mean
        errors = np.sqrt(np.maximum(np.diag(frame @ fitted.root_cov @ frame.T), 0.0))
        wide = [term for term, error in zip(terms, errors, strict=True) if error > 30.0]
        if wide:
            notes.append(
                f"The outcome is separated perfectly by {_names(wide)}: without the penalty the estimates would be "
                "infinite, so read their sign, not their size."
            )
    elif rows and problem.family.has_dispersion:
        notes += _digits(float(fitted.sigma2), float(np.var(clients.y)))
    notes += said_of(fitted.family or problem.family, float(fitted.sigma2))
    if "residual_of" in fitted.info:
        notes.append(
            "No row is left over that says how far outcomes lie from these models: the residual variance is that of "
            "the pooled model, which is larger where clients differ."
        )
    if (v := fitted.client_sigma2) is not None:
        held = np.flatnonzero(0.5 * (clients.counts + PRIOR_ROWS) * v < PRIOR_ROWS / np.mean(1.0 / v))
        if len(held):
            notes.append(
                f"The residual s.d. of {_labels(clients, held.tolist())} rests less on own rows, which lie nearly on "
                "the model, than on the row of common variance that every client counts more: it is small, not known."
            )
    if "rounds" in fitted.info:
        notes += over_rounds(fitted.info["rounds"])
    if "collaboration" in fitted.info:
        notes += with_collaborators(clients, fitted.info["collaboration"])
    if "training" in fitted.info:
        notes += of_training(clients, name, fitted.info["training"])
    if "network" in fitted.info:
        notes += along_network(clients, fitted.info["network"])
    if not FITTED[name].learns or "strengths" in fitted.info:
        return notes
    levels = [f"Clients ({clients.name})", *(f"Clusters ({level.name})" for level in clients.levels)]
    sizes = [len(clients), *(len(level.labels) for level in clients.levels)]
    if far := _far_from_zero(terms, mean, sd, problem, fitted.info):
        notes.append(far)
    columns = [problem.straying, *([problem.personal] * len(clients.levels))]
    each = zip(levels, sizes, columns, (fitted.D_client, *(d[None] for d in fitted.D_levels)), strict=False)
    for who, nodes, where, D in each:
        D = at_means(D, fitted.info)
        zero = [terms[j] for j in where if nodes > 1 and not np.any(D[:, j, j] > 0.0)]
        if zero:
            notes.append(f"{who} do not differ in {_names(zero)}: the variance is zero.")
        if nodes > 1 and (singular := _singular(D, where, terms)):
            notes.append(f"{who}: {singular}")
    notes += fitted.info.get("approximation", [])
    if fitted.info.get("status") == "stopped":
        notes.append("The search for the variances ended where rounding allows no further decrease of the deviance.")
    return notes


def over_rounds(r: Mapping[str, Any]) -> list[str]:
    """How far a run over rounds came and what it cost; what theory could not say; what to do after a divergence."""
    sent, steps, status = r["communications"], int(r["trace"][-1][0]), str(r["status"])
    if status.startswith("diverged"):
        step = status.rsplit(" ", 1)[-1]
        why, remedy = (
            "Of this family smoothness is known near the optimum only",
            "use method 'async-l2gd' with a small eta, or an exact method",
        )
        if "rho" not in r:
            remedy = f"give an eta under {r['eta']:.2g}"
        if too_long(r):
            why, remedy = f"That is what may happen with an eta above {1.0 / r['smoothness']:.2g}", "leave eta out"
        return [
            f"The run diverged by step {step}; the coefficients are the last finite ones before it, "
            f"{_short_of(r['gap'])}. {why}: {remedy}."
        ]
    counts = f"{plural(sent['between'], 'communication')} between clusters and "
    counts += f"{sent['within']:,.1f} within each in the mean"
    if "refreshes" in sent:
        all_speak = sent["refreshes"]
        counts += f", and {all_speak:,} refresh{'es' * (all_speak != 1)} of the anchor, in which all clusters speak"
    left = _short_of(r["gap"])
    if (share := r.get("differing", np.nan)) >= 1e-4:  # of zero a distance says little where outcomes are far from it
        left += f", or {_percent(share)} of how far clients' models lie from the global one"
    notes = [f"After {plural(steps, 'step')} with {counts}, the coefficients are {left}."]
    if r.get("shared"):
        notes.insert(
            0,
            "Shared columns moved in communications between clusters only. The theorem holds with a term more for "
            "them; what the paper proves of counts and of the best probabilities is of models that share nothing.",
        )
    if too_long(r):
        notes.append(
            f"eta = {r['eta']:.3g} is above {1.0 / r['smoothness']:.3g}, the largest step for which the error is known "
            f"to fall (Lyu, Hanzely, Kolar 2022, Theorem 3.5, which itself takes {0.5 / r['smoothness']:.3g}): nothing "
            "is promised, and the distance above is measured."
        )
    elif not np.isfinite(r["promised"]):
        size = "the momentum of a small strong convexity" if "rho" in r else "a constant step"
        notes.append(
            "Rows and ties leave some direction open (mu_F = 0: fewer rows than columns, or separated outcomes), so no "
            f"theorem says how fast this run comes near: {size} and {plural(steps, 'step')} were taken, and the "
            "distance above is measured."
            + " Without ties a shared column that is constant within clients is one with their intercepts: rows tell "
            "predictions for these clients, not its coefficient. Tie clients (gamma above 0), or leave the column out."
            * bool(r.get("shared"))
        )
    elif r["promised"] > r["accuracy"] and r["gap"] > r["accuracy"]:
        condition = r["smoothness"] / r["mu"]
        remedy = "give more steps" if "rho" in r else "give more steps, or method 'async-al2sgd'"
        if condition > ILL:
            remedy = f"the condition number is {condition:.0e}, so bring columns to like sizes, or use an exact method"
        notes.append(f"That is more than the {100.0 * r['accuracy']:.2g}% asked for: {remedy}.")
    return notes


def too_long(r: Mapping[str, Any]) -> bool:
    """Whether the step of a run over rounds is longer than any theorem takes."""
    return "rho" not in r and r["eta"] * r["smoothness"] > 1.0 + 1e-12


def with_collaborators(clients: Clients, c: Mapping[str, Any]) -> list[str]:
    """How far the run of main clients came, whom they no longer listened to, and what that means."""
    notes, steps = [], int(c["trace"][-1][0])
    if str(c["status"]).startswith("diverged"):
        notes.append(
            f"The run {c['status']}, for {_labels(clients, c['diverged'])}; all coefficients are the last finite ones "
            "before it: give an eta under the one used, which is in the result."
        )
    elif c["status"] == "not reached":
        notes.append(
            "Newton's method did not come to its end for some clients, whose means differ by orders of magnitude: "
            "believe the held-out losses, or take the method 'hierarchical'."
        )
    elif c["gap"] > FAR:
        goal = "each client's own optimum" if c["corrected"] and not c["keep"] else "the weighted averages' optimum"
        if c["gap"] > 1.0:
            note = f"After {plural(steps, 'step')} the models are farther from {goal} than at the start: "
            note += "do not use them, and give a smaller eta, or leave it out."
        else:
            note = f"The run stopped after {plural(steps, 'step')}, {_percent(c['gap'])} of the way short of {goal}. "
            note += "Stopping early keeps models near the pooled one, and may be better or worse than going on: "
            note += "compare with more steps."
        notes.append(note)
    elif c["corrected"] and not c["keep"]:
        notes.append(
            "All bias is corrected and the run came to its end: these are the models that each main client would have "
            "alone. Keep some bias (keep), or take fewer steps, for something in between."
        )
    if bad := c["quarantined"]:
        notes.append(f"{_labels(clients, bad)} sent what is no finite gradient, and nobody listened to it any more.")
    if (prior := c["prior"]) > 0.0:
        notes.append(
            f"A prior worth {prior:.2g} row{'s' * (prior != 1)} pulls every main client's model to the pooled one, so "
            "that separated outcomes stay finite. Gains over local are over models of clients' own rows under the same "
            "prior. To change it, give the option prior of rounds a number of rows, or none."
        )
    return notes + list(c["uncovered"])


def of_training(clients: Clients, name: str, t: Mapping[str, Any]) -> list[str]:
    """How steps of a method were chosen, whether models still moved at the end, and who was left out."""
    rounds, eta, notes = t["rounds"], t["options"].get("eta"), []
    after = f"After {plural(rounds, 'round')} of {name},"
    if "eta" not in t["asked"]:
        notes.append(
            f"Steps of {name} are as long as the smoothness of clients' losses allows (eta = {eta:.3g}), in columns in "
            "which all rows together have curvature one."
        )
    if t["status"] != "finished":
        remedy = "leave eta out of rounds" if "eta" in t["asked"] else "give rounds a smaller eta"
        notes.append(f"The run {t['status']}; the coefficients are the last finite ones before it: {remedy}.")
    elif t["moved"] > STILL:
        why = "what a round is made of is drawn, so they never rest" if t["drawn"] else "give more rounds"
        moved = f"models still moved by {_percent(t['moved'])} of their whole way since the look before"
        notes.append(f"{after} {moved}: {why}.")
    if bad := t["quarantined"]:
        many = plural(len(bad), "client")
        notes.append(f"{many} left the run, as steps or data of theirs gave no finite model: {_labels(clients, bad)}.")
    return notes + list(t["notes"])


def beside_network(name: str, compared: bool) -> str:
    """Where a network was described and another method was fitted: why it is not to be seen, and what to do."""
    why = f"was compared and not chosen: '{name}' was fitted" if compared else f"is not used by '{name}'"
    return (
        f"The similarity network {why}, so there is no network and there are no groups in this result. To see them, "
        'ask for the method: --method similarity-network, in Python method="similarity-network".'
    )


def along_network(clients: Clients, n: Mapping[str, Any]) -> list[str]:
    """Who has no ties, what was not reached, and whom a run no longer listened to."""
    notes, status = [], str(n["status"])
    if n["isolated"]:
        alone = f"{n['isolated']:,} client{'s have' if n['isolated'] > 1 else ' has'} no ties ({clients.name})"
        notes.append(f"{alone} and learn{'s' * (n['isolated'] == 1)} from own rows only.")
    elif n["components"] > 1:
        remedy = "add edges between them" if n["space"] == "edges" else "ask for connected=True, or more neighbours"
        notes.append(
            f"The network falls into {plural(n['components'], 'part')}, between which nothing is tied: {remedy}, if "
            "they are to learn from each other."
        )
    if n["lam"] == 0.0:
        best = "Held-out rows were predicted best without ties" if n.get("tried") else "Ties have no strength (lam=0)"
        notes.append(f"{best}: every client has a model of its own rows.")
    if status == "not reached":
        notes.append(
            f"The optimum was not reached (residual {n['kkt']:.1g}): outcomes may be separated, columns of very "
            "different sizes, or far from zero where clients share the intercept (subtract their means)."
        )
    if status.startswith("diverged"):
        notes.append(f"The run {status}; the coefficients are the last finite ones before it: give an eta below 1.")
    elif "gap" in n and n["gap"] > FAR:
        steps = int(n["trace"][-1][0])
        left = f"with {_percent(n['gap'])} of the decrease still to come: give more steps"
        if n["gap"] > 1.0:
            left = "farther from the optimum than it began: give a smaller eta, more rows or more clients a step"
        if "bytes_per_update" in n:
            left += f", or more than {n['bytes_per_update']} bytes_per_update"
        notes.append(
            f"The run stopped after {plural(steps, 'step')} {left}, or leave rounds out, and the optimum is computed."
        )
    if bad := n.get("quarantined"):
        notes.append(f"{_labels(clients, bad)} sent what is no finite gradient, and nobody listened to it any more.")
    return notes


def _labels(clients: Clients, at: list[int]) -> str:
    """Some clients by name."""
    return ", ".join(str(clients.labels[i]) for i in at[:5]) + (", ..." if len(at) > 5 else "")


def _percent(share: float) -> str:
    return f"{100.0 * share:,.0f}%" if share >= 0.1 else f"{100.0 * share:.2g}%"


def _short_of(gap: float) -> str:
    """A distance in words."""
    if np.isnan(gap):
        return "not compared: the exact solver holds clients that nothing ties by a weak prior, which rounds have not"
    if not gap <= 1.0:
        return "farther from the exact optimum than the start was"
    return f"{_percent(gap) if gap >= 1e-4 else 'less than 0.01%'} of the way short of the exact optimum"


def _names(terms: list[str]) -> str:
    shown = ["the intercept" if t == "(Intercept)" else t for t in terms[:6]] + (["..."] if len(terms) > 6 else [])
    return joined(shown)
