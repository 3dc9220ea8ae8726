"""The table of methods: a further method is its own file and a row here, from which all that names methods comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError, nearest
from coterie.methods.method import EVERYTHING, STEPS, STRENGTHS, TRAINED_ON_ROWS, Method, Relation

if TYPE_CHECKING:
    from coterie.methods.problem_and_estimates import GroupedProblem

LEARNING = ("covariance", "reml", "own", "residual", "quadrature")
_LEARNS: dict[str, Any] = {"takes": (*LEARNING, "intervals"), "learns": True}
_FLAT: dict[str, Any] = {"flat": True, "clustered": True}
_SHRINKS: dict[str, Any] = {"takes": STRENGTHS + LEARNING, "learns": True, "asked": True}
_FAST, _AS_SENT, _LESS_BIAS = {"accelerated": True}, {"corrected": False}, {"corrected": True}
_EACH, _COINS = "each client's gradients by themselves", "averages within clusters, whenever coins decide"
_NETWORK: dict[str, Any] = {"takes": ("network", "rounds"), "convex": True}
_ALONE: dict[str, Any] = {"personal": EVERYTHING}
_SENT_AS: dict[str, Any] = {"personal": (), "up": "none", "down": "none"}
_ONE: dict[str, Any] = {"pool_rows": True, "fixed_options": {"C": 1.0, "online": 1.0} | _SENT_AS}
_OPTIMIZER = ("optimizer", "optimizer_args")
_SENT = dict.fromkeys(("clip", "momentum", *_OPTIMIZER), "sends gradients, and only steps of a client's own heed it")
_ALL_ROWS = {"batches": "adds up gradients of all rows, or of those that its sites draw"}
_PLAIN = dict.fromkeys(_OPTIMIZER, "takes plain steps, which its theory is about")
_STEPWISE = {"idle": {"momentum": "takes local steps one by one, each from rest"} | _PLAIN}
_PRIVATE: dict[str, Any] = {"defaults": {"eta": 0.1}, "fixed_options": {"B": 0} | _SENT_AS, "idle": _SENT | _ALL_ROWS}
_OWN: dict[str, Any] = {"all_own": True}
_TIED = _OWN | {"idle": _PLAIN}
_STEPPED: dict[str, Any] = _OWN | _STEPWISE
_APART: dict[str, Any] = {"fixed_options": {"shared": ()}}
_OF_NETS = {  # what no formula has, and which method is near for a table
    "fedbn": ("is about layers that normalise", "fedper"),
    "fedrod": ("adds up the class scores of two heads of a net", "apfl"),
    "moon": ("contrasts the features that a net gives its head", "fedprox"),
    "fedproto": ("shares the features that a net gives its head", "ditto"),
    "fedem": ("answers by the probabilities of several nets", "ifca"),
    "knn-per": ("remembers the features that a net gives its head", "apfl"),
}
_MAIN: tuple[str, Relation] = ("collaboration", "main client")
_KNOWN: tuple[str, Relation] = ("group_sgd:GroupSGD", "groups")
_SEEN = {"reveals": "clients' updates by themselves, to find groups"}
_DRIFT = {"reveals": "clients' control variates, which have no bound", "idle": _PLAIN}
_SUMMED = {"reveals": "clients' changes as they are, neither clipped nor with noise"}
_BUFFERED = _SUMMED | {"fixed_options": {"up": "none", "down": "none"}}
_HEARD: dict[str, Any] = _OWN | {"reveals": "clients' models by themselves, to say who hears whom"}
_STEPS_HEARD = _HEARD | _STEPWISE
_BEGUN = {"idle": {"spread": "begins at the net's own first numbers"}}
_IFCA: tuple[str, Relation, dict[str, Any]] = ("ifca:IFCA", "found groups", _OWN | _SEEN | _BEGUN)
_CFL: tuple[str, Relation, dict[str, Any]] = ("cfl:CFL", "found groups", _OWN | _SEEN)
_SOFT: tuple[str, Relation, dict[str, Any]] = ("fedsoft:FedSoft", "found groups", _OWN | _SEEN | _BEGUN)
_LENGTHS = "changes of several models, whose lengths have no bound"
_SEVERAL = _OWN | {"fixed_options": _SENT_AS, "idle": _PLAIN | _BEGUN["idle"], "reveals": _LENGTHS}
_PROTOTYPES = _OWN | {"fixed_options": _SENT_AS, "reveals": "mean features of clients' classes, which have no bound"}
_FOUND: tuple[str, Relation, dict[str, Any]] = ("found_groups:FoundGroups", "found groups", _SEEN)
_PULLED: tuple[str, Relation] = ("group_penalty:GroupPenalty", "groups")
_GROUPED: dict[str, Any] = {"E": 1, "own": "averaged", "weigh": "rows"}
_SHAPES, _TRIED, _LAYERS = {"shapes": True, "tried": True}, {"tried": True}, {"layout": "personal"}
_PULLS = _LAYERS | {"reveals": "clients' own layers in the open"}
_OVER: dict[str, Any] = {"takes": (*STRENGTHS, "rounds"), "learns": True, "asked": True}


def _exact(name: str, summary: str, fits: str, near: str, about: Relation = "tree", **more: Any) -> Method:
    """A method for tables that solves for the optimum, in whatever columns; ``near`` it is one for nets."""
    why = f"Method '{name}' solves exactly from sums over the rows of a formula, which a net has not: use '{near}'."
    return Method(name, summary, about, fits=fits, turns=True, not_for={"torch": why}, **more)


def _over(name: str, summary: str, room: str, about: Relation, options: str = "Options", **more: Any) -> Method:
    """A method over rounds for tables, whose fit and options lie in a room of their own."""
    takes = {"fits": f"{room}.fit:fit", "rounds": f"{room}.options:{options}"}
    return Method(name, summary, about, **{**takes, "takes": ("rounds",), "asked": True, **more})


def _nets(path: str, reveals: str, gradients: bool = False, **defaults: Any) -> dict[str, Any]:
    """What a method for tables says of its class over any objective, whose layers may be split; coins need tuning."""
    idle = {"schedule": "takes steps of one size, as its theory has it"} | (_SENT if gradients else _PLAIN)
    more = {"layout": "personal", "splits": False, "reveals": reveals, "idle": idle, "tried": reveals != _COINS}
    return {"trains": path, "defaults": STEPS | {"tau": 5} | defaults, **more}


def _trains(
    name: str, summary: str, path: str, about: Relation = "nothing", more: dict[str, Any] | None = None, **defaults: Any
) -> Method:
    """A method over rounds, for any objective, a table's too, with defaults beside those of steps."""
    usual: dict[str, Any] = {"takes": ("rounds",), "asked": True, "turns": True, "defaults": STEPS | defaults}
    usual |= {"rounds": "local_training.fit:Rounds", "fit_with": {"name": name}}
    usual |= {"clustered" if about == "groups" else "flat": True, "fits": TRAINED_ON_ROWS} | (more or {})
    if name in _OF_NETS:
        why = "Method '{}' {}, and a formula has none: use '{}'.".format(name, *_OF_NETS[name])
        usual |= {"fits": "", "rounds": "", "not_for": {"table": why}}
    return Method(name, summary, about, trains=path, **usual)


_ASYNC = _nets("clustered_l2gd.training:AsyncL2GDTraining", _COINS, tau=10)
_FASTER = _nets("clustered_l2gd.training:AsyncAL2SGDTraining", _COINS, True, tau=10) | {"fit_with": _FAST}
_NETWORK |= _nets("networks.training:NetworkTraining", _EACH)
_PAPER = {"paper_module": "weighted_averaging_and_bias_correction"} | _OWN
_AVERAGED = _nets("collaboration.training:WeightedAveragingTraining", _EACH, True) | _PAPER
_CORRECTED = _nets("collaboration.training:BiasCorrectionTraining", _EACH, True) | _PAPER

_EVERY = (
    Method("local", "every client alone", fits="local:fit", turns=True, trains="fedavg:FedAvg", fixed_options=_ALONE),
    Method("pooled", "one model for all", fits="pooled:fit", turns=True, trains="fedavg:FedAvg", **_ONE),
    _exact("own-intercept", "shared slopes, own intercepts", "own_intercept:fit", "fedper", "nothing", intercept=True),
    _exact("clusterwise", "one model for each cluster", "clusterwise:fit", "group-models", clustered=True),
    _exact("single-cluster", "clients tied to one centre", "hierarchical:fit", "ditto", "nothing", **_FLAT, **_LEARNS),
    _exact("hierarchical", "clients tied to clusters, or to a centre", "hierarchical:fit", "cluster-l2gd", **_LEARNS),
    _exact("given-strengths", "the same, its strengths given", "given_strengths:given", "l2gd", takes=STRENGTHS),
    _exact("james-stein", "the same, its centre shrunk towards zero", "james_stein:fit", "ditto", **_SHRINKS),
    _over("async-l2gd", "the same, over rounds", "clustered_l2gd", "tree", convex=True, **_OVER, **_ASYNC),
    _over("async-al2sgd", "the same, over fewer rounds", "clustered_l2gd", "tree", convex=True, **_OVER, **_FASTER),
    _over("similarity-network", "clients tied to those who are alike", "networks", "network", "Run", **_NETWORK),
    _over("weighted-averaging", "own and others' gradients, weighed", *_MAIN, fit_with=_AS_SENT, **_AVERAGED),
    _over("bias-correction", "the same, the others' bias corrected", *_MAIN, fit_with=_LESS_BIAS, **_CORRECTED),
    _trains("fedavg", "one model, the average of clients' own steps", "fedavg:FedAvg", more=_TRIED),
    _trains("fedavg-finetune", "the same, then steps of each client alone", "fedavg:FedAvg", more=_OWN, finetune=20),
    _trains("dp-sgd", "clipped gradients of rows, for their privacy", "dp_sgd:DPSGD", more=_PRIVATE | _TRIED),
    _trains("fedavgm", "the average, with momentum at the server", "fedopt:FedAvgM"),
    _trains("fedadagrad", "the average, by Adagrad at the server", "fedopt:FedAdagrad"),
    _trains("fedyogi", "the average, by Yogi at the server", "fedopt:FedYogi"),
    _trains("fedadam", "the average, by Adam at the server", "fedopt:FedAdam"),
    _trains("fedbuff", "the average, without waiting for the slowest", "fedbuff:FedBuff", more=_BUFFERED),
    _trains("fedprox", "clients' steps held near the average", "fedprox:FedProx", mu=0.1),
    _trains("scaffold", "clients' steps corrected for their drift", "scaffold:Scaffold", more=_DRIFT),
    _trains("ditto", "own models pulled to the average", "ditto:Ditto", more=_OWN | _TRIED, lam=0.1, s=5),
    _trains("pfedme", "own models in Moreau envelopes", "pfedme:PFedMe", more=_OWN, lam=5.0, alpha=0.05, R=5),
    _trains("l2gd", "own models pulled to their mean where a coin falls so", "l2gd:L2GD", more=_TIED, lam=0.1),
    _trains("apfl", "own models mixed with the average", "apfl:APFL", more=_OWN | _STEPWISE),
    _trains("fedper", "own last layers", "fedper:FedPer", "layers", _LAYERS | _TRIED),
    _trains("fedrep", "own last layers, trained first", "fedrep:FedRep", "layers", _LAYERS),
    _trains("fedbn", "own normalisation", "fedbn:FedBN", "layers", {"normalises": True}),
    _trains("fedbabu", "a head that nobody trains, own ones tuned at the end", "fedbabu:FedBABU", "layers", _LAYERS),
    _trains("lg-fedavg", "own first layers", "lg_fedavg:LGFedAvg", "layers", _LAYERS),
    _trains("per-fedavg", "one model, which a step suits to each", "per_fedavg:PerFedAvg", more=_STEPPED, alpha=0.05),
    _trains("feddyn", "clients' steps corrected by what they changed", "feddyn:FedDyn", more=_SUMMED, alpha=0.1),
    _trains("fedala", "own models, mixed with the average number by number", "fedala:FedALA", more=_OWN),
    _trains("fedrod", "a balanced head for all, and own ones that add to it", "fedrod:FedROD", more=_OWN),
    _trains("moon", "clients' features drawn to the average's", "moon:MOON"),
    _trains("fedproto", "own models with common features of classes", "fedproto:FedProto", more=_PROTOTYPES, lam=1.0),
    _trains("fedem", "own mixtures of k models, by shares of rows", "fedem:FedEM", more=_SEVERAL, k=3, tau=5),
    _trains("knn-per", "the average, and a memory of own rows", "knn_per:KNNPer", more=_OWN),
    _trains("ifca", "a model for each of k groups, chosen by loss", *_IFCA, k=4, tau=5),
    _trains("cfl", "groups split where their updates disagree", *_CFL, eps1=0.4, eps2=1.6),
    _trains("found-groups", "groups found by updates, then a model for each", *_FOUND, **_GROUPED),
    _trains("fedsoft", "own models, pulled to k groups by shares of rows", *_SOFT, k=4, tau=5, lam=0.1),
    _trains("fedamp", "own models, which attend to near ones", "fedamp:FedAMP", "found groups", _HEARD, lam=0.1),
    _trains("fedfomo", "own models, moved to others' that fit better", "fedfomo:FedFomo", "found groups", _HEARD),
    _trains("apple", "own mixtures of all clients' models, learned", "apple:APPLE", "found groups", _STEPS_HEARD),
    _trains("pfedgraph", "own mixtures, by how alike updates are", "pfedgraph:PFedGraph", "found groups", _STEPS_HEARD),
    _trains("group-sgd", "known groups, some layers shared", *_KNOWN, {"layout": "shared"} | _SHAPES, **_GROUPED),
    _trains("cluster-l2gd", "own models pulled to groups' means", "l2gd:L2GD", "groups", _TIED, lam=0.1, alpha=0.3),
    _trains("group-models", "a model for each known group", *_KNOWN, _OWN | _APART | _SHAPES, **_GROUPED),
    _trains("group-penalty", "own layers pulled together within known groups", *_PULLED, _PULLS, lam=0.1, tau=5),
)
METHODS = {method.name: method for method in _EVERY}
FITTED = {name: method for name, method in METHODS.items() if method.fits}  # those for a table and a formula
TRAINED = {name: method for name, method in METHODS.items() if method.trains}  # those over rounds, for any objective


def trained_method(name: str, folder: Path | None = None) -> Method:
    """A method over rounds by name, or one of the user's own by its import path, in modules of ``folder`` first.

    A CoterieError for an unknown name, with those that may have been meant, and for a class that cannot be found or is
    no method.
    """
    if ":" in name:
        from coterie.methods.user_defined_method import user_defined_method

        return user_defined_method(name, folder)
    if name in METHODS and name not in TRAINED:
        raise CoterieError(METHODS[name].not_for["torch"])
    if name not in TRAINED:
        hint = nearest(name, TRAINED) or f" There are {', '.join(TRAINED)}, and package.module:Class."
        raise CoterieError(f"There is no method to train called '{name}'.{hint}")
    return TRAINED[name]


def applicable(
    problem: GroupedProblem, learnable: bool, strengths: bool, asked: str = "auto", network: bool = False
) -> list[str]:
    """Names of the methods for tables that differ on this problem, given what can be learned, is given and asked."""
    from coterie.relations.clusters import ClusterTree

    learns = {False: learnable, True: learnable and replace(problem, tree=ClusterTree()).learnable}

    def fits(m: Method) -> bool:
        has_intercept = problem.intercept is not None and problem.intercept in problem.personal
        clusters = len(problem.tree.parents) > 0 and problem.tree.sizes[0] > 1
        given = strengths and "gamma" in m.takes
        if (m.asked and m.name != asked and not (m.networked and network)) or not (
            given or (learns[m.flat] if m.learns else "gamma" not in m.takes)
        ):
            return False
        return (clusters or not m.clustered) and (has_intercept or not m.intercept)

    return [name for name, method in FITTED.items() if fits(method)]
