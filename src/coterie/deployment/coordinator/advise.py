"""Advice over sites that keep their rows: who should collaborate with whom, as far as they speak of single clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from coterie.deployment.coordinator import identifiability
from coterie.deployment.coordinator.comparison import ALIKE, Comparing, Fit, Summed
from coterie.deployment.coordinator.fit import clients_without_rows, settled
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.schema import Schema, clusters_of
from coterie.engines.retry_and_quorum import BelowQuorum, Refused
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError, NotAll
from coterie.evidence.table_comparison import TableComparison
from coterie.federation import Federation
from coterie.methods import pooled
from coterie.methods.collaboration import fit as collaboration
from coterie.methods.collaboration.options import Options as Collaboration
from coterie.methods.problem_and_estimates import Estimates
from coterie.results.advice import Advice, measured, of_clients, of_pairs
from coterie.results.make_advice import Together

METHOD = "weighted-averaging"


def advise(fed: Remote, program: RunConfig, schema: Schema, opened: Callable[..., Remote], secure: bool) -> Advice:
    """What :func:`coterie.advise` says of one table, from what the sites let leave; ``opened`` is that of a fit.

    Where a site speaks of no single client, collaborators are not chosen, and what rows held out say is of `local` and
    `pooled` alone; notes say which site, and why.
    """
    task = program.task
    _, options, design = settled(program, schema, program.seed or 0)
    found, _, mean, _ = identifiability.problem(fed, design.terms, options.family, ())
    if task.get("weights"):  # relative to their mean, which no site knows
        fed, opened = opened("weighed", mean_weight=mean), partial(opened, mean_weight=mean)
    clients = clients_without_rows(fed, design.terms, task)
    problem = replace(found, personal=np.arange(len(design.terms)), intercept=None)
    asked = Collaboration.of(options.rounds, corrected=False)
    together, choice, held = Together(problem, asked), None, 0.0
    notes = fed.participants.notes
    try:
        choice, _, held = together.over(fed)
    except CoterieError as refused:
        if isinstance(refused, NotAll | BelowQuorum) and not isinstance(refused, Refused):
            raise
        notes.append(f"With whom to collaborate is not said, as that asks for single clients: {refused}")

    def alone(fed: Federation) -> Estimates:
        return collaboration.alone(fed, problem, {"prior": asked.prior})

    frame, settings = of_clients(clients, choice), {} if choice is None else dict(choice.about)
    evidence = None
    if options.splits:
        fits: dict[str, Fit] = {"pooled": lambda fed: pooled.fit(fed, problem)}
        if choice is not None:
            fits[METHOD] = together.in_split
        alike: dict[str, Fit] = {METHOD: alone} if choice is not None and options.has_prior else {}
        each = frozenset({METHOD})
        said = Comparing(fits, alike, opened, problem, options.hold, secure, each, by=options.by).over(fed)
        notes += said.notes
        parts = [_renamed(part) for part in said.parts]
        evidence = None if said.found is None else _renamed(said.found)
        if said.alone and parts and "together" in parts[0].losses:
            frame = frame.assign(**measured(parts, options.test_fraction, together.predicted))
    settings |= {"formula": task["formula"], "client": clients.name, "cluster": clusters_of(task)}
    settings |= {"family": options.family, "collaborators": asked.collaborators, "within": asked.within}
    settings |= {"splits": options.splits, "test_fraction": options.test_fraction, "seed": options.seed}
    settings |= {"columns": len(design.terms), "prior": held, "notes": notes, "sites": list(fed.names)}
    table = pd.DataFrame() if evidence is None else evidence.table
    return Advice(frame, of_pairs(clients, choice), table, problem.family.loss, settings)


def _renamed(found: TableComparison) -> TableComparison:
    """The comparison under the names of an advice: `local` is under the prior of what stands for `together`."""
    losses = {name: found.losses[name] for name in ("local", "pooled")} | found.alike
    order = {METHOD: "together"}
    if found.alike:
        losses["local"] = losses.pop(METHOD)
        order |= {"local": "local, free", f"{ALIKE}{METHOD}": "local"}
    if METHOD in found.losses:
        losses["together"] = found.losses[METHOD]
    seconds = {name: found.seconds[METHOD if name == "together" else name] for name in losses}
    made = replace(found, losses=losses, alike={}, seconds=seconds)
    return replace(made, order=tuple(order.get(n, n) for n in made.order)) if isinstance(made, Summed) else made
