"""What can be made again, by name: the number of a paper, and what it calls the table or figure."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from coterie.errors import CoterieError, joined, nearest
from papers.outcome import Outcome, Settings


@dataclass(frozen=True)
class Experiment:
    """A table or figure that can be made again: a module whose ``run(settings)`` gives an Outcome.

    Attributes
    ----------
    name : str
    what : str
        In one line.
    time : str
        About how long it takes on two cores.
    """

    name: str
    what: str
    time: str

    def run(self, settings: Settings) -> Outcome:
        """Do the work; nothing is written. The module ``paper_001.table1`` of ``001/table1`` is imported for it."""
        outcome: Outcome = import_module(f"papers.paper_{self.name.replace('/', '.')}").run(settings)
        return outcome


_DONOR = "Donor response, simulated in its shape:"
_NOISY = "Noisy quadratic, simulated and exact:"
_STUDY = "All methods, and what a network adds:"
_EXPERIMENTS = (
    Experiment("000/variance", "The variance formula against 2,000 repeats, by clients", "10 s"),
    Experiment("000/convergence", "Group SGD without convexity under its rate; groups' own gradients", "1 min"),
    Experiment("000/digits", "Layers shared by all and by groups of rotated digits, known or found", "10 min"),
    Experiment("001/table1", "Distance to the truth in section 6.1's simulation", "30 s"),
    Experiment("001/figure1", "The same distance against rows of a client", "2 min"),
    Experiment("001/figure2", f"{_DONOR} cross-entropies of clients", "15 s"),
    Experiment("001/donor", f"{_DONOR} Tables 2 and 3; the same on real data", "2 min"),
    Experiment(
        "001/optimisation", "Section 6.2 by the paper's optimiser and exactly, against the single model", "5 min"
    ),
    Experiment("001/bound", "Mean squared distance of many runs under Theorem 3.5's bound", "20 s"),
    Experiment("001/oracle", "Least risk (Bayes, BLUE) beside every estimator's in Table 1's setting", "1 min"),
    Experiment("001/stein", "Proposition 5.4: James-Stein against BLUE over |mu| and d, exact and simulated", "10 s"),
    Experiment("001/independence", "Clusters that communicate each for itself, on a hard instance", "5 min"),
    Experiment("001/acceleration", "Async-AL2SGD+ against Async-L2GD by communications", "40 s"),
    Experiment("003/figure5", "Bits of an update with and without clusters of elements", "5 s"),
    Experiment("003/figure6", "An update of logistic regression: raw, TV, 4 and 3 values", "5 s"),
    Experiment("003/schools", f"{_STUDY} students of schools, tied by the schools' covariates", "2 min"),
    Experiment("003/spambase", f"{_STUDY} mail mislabelled by hidden groups", "3 min"),
    Experiment("003/digits", f"{_STUDY} digits rotated by hidden groups", "3 min"),
    Experiment("003/steps", "Step sizes and penalties of the two studies of hospitals, by the same budget", "10 min"),
    Experiment("003/segmentation", f"{_STUDY} masks of hospitals in hidden groups, by the front", "5 min"),
    Experiment("003/nodules", f"{_STUDY} lung nodules of hospitals in hidden groups, by the front", "10 min"),
    Experiment("004/figure1", f"{_NOISY} alone, WGA, BC", "10 s"),
    Experiment("004/figure2", f"{_NOISY} bias and BC", "15 s"),
    Experiment("004/figure3", f"{_NOISY} bias and WGA", "5 s"),
    Experiment("004/figure4", f"{_NOISY} number of collaborators and BC", "10 s"),
    Experiment("004/figure5", "Predicted speed-up of WGA by collaborators and bias", "3 s"),
    Experiment("004/figure6", "Predicted speed-up of WGA where gradients are scaled", "3 s"),
    Experiment("004/bounds", "Theorems 4.1, 5.1, 5.2 over runs of the noisy quadratic", "10 s"),
    Experiment("004/net", "WGA and BC of a net, for a main client with few rows and related ones", "8 min"),
    Experiment("004/mean", "Collaborative mean estimation: WGA and BC, simulated and exact", "30 s"),
)


def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order of the papers."""
    return _EXPERIMENTS


def find(name: str) -> Experiment:
    """An experiment by name.

    Parameters
    ----------
    name : str
        Such as ``"001/table1"``.

    Returns
    -------
    Experiment

    Raises
    ------
    CoterieError
        For an unknown name, with those that may have been meant.
    """
    for experiment in _EXPERIMENTS:
        if experiment.name == name.strip().lower():
            return experiment
    names = [e.name for e in _EXPERIMENTS]
    hint = nearest(name, names) or f" There are {joined(names)}."
    raise CoterieError(f"There is no table or figure called '{name}'.{hint}")
