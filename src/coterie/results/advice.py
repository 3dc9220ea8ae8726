"""Should this client collaborate, and with whom? What theory predicts, beside what held-out rows say; in words, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.labels import find_labels, resembling
from coterie.errors import CoterieError, checked_calls, listed, nearest, plural
from coterie.evidence.comparison import losing, over_clients, over_splits
from coterie.evidence.table_comparison import FEW, TableComparison, all_splits
from coterie.methods.collaboration.choose_collaborators import Choice
from coterie.numerics.arrays import Floats

WORTH = 1.1
"""A predicted speed-up from which collaboration is advised: below, it saves less than one row of ten."""
OWN_ROWS = 4
"""Training rows for each column from which "alone" is the model that theory speaks of."""


@checked_calls
@dataclass(frozen=True, repr=False)
class Advice:
    """With whom every client should collaborate.

    Attributes
    ----------
    clients : DataFrame
        A row for each client, by its label. ``rows``; ``collaborators``, how many; ``alpha``, how much they count;
        ``speedup``, predicted: as if it had so many times its rows; ``predicted_gain``, of the mean held-out loss, for
        the rows it is trained on in a split; ``test_rows`` of all splits; ``loss_alone``, ``loss_together``,
        ``loss_pooled``, mean held-out losses (NaN without test rows; alone and together under the same prior); ``gain``
        of together over alone, with a 95% interval ``gain_low`` to ``gain_high`` over the splits (NaN where there are
        fewer than 3); ``loses``, whether a loss stands out of the noise of splits, for so many clients.
    weights : DataFrame
        A row for each pair: ``client``, ``collaborator``, ``tau`` (adding up to 1 for a client) and ``weight``,
        ``alpha * tau``; by client, heaviest first.
    evidence : DataFrame
        A row for each of local, pooled and together: see ``FitResult.comparison``. Empty without splits.
    loss : str
        Name of the loss.
    settings : dict
    """

    clients: pd.DataFrame
    weights: pd.DataFrame
    evidence: pd.DataFrame
    loss: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """What was found, in words; without splits, what is predicted only."""
        found = list(_who(self)) if "speedup" in self.clients else []
        if not self.evidence.empty:
            found += _over_rows(self)
        if "gain" in self.clients:
            found += [*_measured(self), *_agreement(self), *_harm(self)]
        if (held := self.settings.get("prior", 0.0)) > 0.0:
            found.append(
                f"A prior worth {held:.2g} row{'s' * (held != 1)} pulls every model to the pooled one, alone as "
                "together, so that separated outcomes stay finite: with prior none nothing does."
            )
        return found + list(self.settings.get("notes", []))

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    @property
    def repeats(self) -> str:
        """What intervals are over: splits of a table's rows, or seeds of nets."""
        return "seeds" if "method" in self.settings else "splits"

    def document(self) -> dict[str, Any]:
        """All of it as what :func:`coterie.results.saved_values.plain` takes; :meth:`from_document` reads it."""
        frames = {"clients": self.clients.reset_index(), "weights": self.weights, "evidence": self.evidence}
        if not self.evidence.empty:
            frames["evidence"] = self.evidence.reset_index()
        tables = {name: {str(c): one[c].tolist() for c in one} for name, one in frames.items()}
        return tables | {"index": str(self.clients.index.name), "loss": self.loss, "settings": self.settings}

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> Advice:
        """The advice of a document."""
        clients, weights, evidence = (pd.DataFrame(found[name]) for name in ("clients", "weights", "evidence"))
        evidence = evidence if evidence.empty else evidence.set_index("method")
        return cls(clients.set_index(found["index"]), weights, evidence, found["loss"], dict(found["settings"]))

    def of(self, client: Any) -> pd.DataFrame:
        """The collaborators of one client: ``collaborator``, ``tau``, ``weight``; a CoterieError for an unknown one."""
        if "speedup" not in self.clients:
            raise CoterieError("Nothing is known of single collaborators here: the sentences of the advice say why.")
        labels = self.clients.index
        at = client_position(labels, str(labels.name), client)
        mine: pd.DataFrame = self.weights[self.weights["client"] == labels[at]]
        return mine.drop(columns="client").reset_index(drop=True)


def client_position(labels: Any, name: str, client: Any) -> int:
    """Where a client's label is among those of column ``name``; a CoterieError for an unknown one."""
    labels = np.asarray(labels)
    at = int(find_labels(labels, np.array([client], dtype=object))[0])
    if at < 0:
        pairs = resembling(np.array([client], dtype=object), labels)
        hint = f" Did you mean {pairs[0][1]!r}?" if pairs else nearest(str(client), [str(x) for x in labels])
        raise CoterieError(f"There is no {name} '{client}' in the table.{hint}")
    return at


def _who(advice: Advice) -> Iterator[str]:
    frame = advice.clients
    speedup = frame["speedup"].to_numpy()
    n, worth = len(frame), int(np.sum(speedup >= WORTH))
    name = frame.index.name
    if worth == 0:
        yield (
            f"No client ({name}) should count on collaborators: the largest predicted speed-up is {speedup.max():.2f}, "
            "and others differ too much for what their rows would add."
        )
        return
    low, middle, high = np.quantile(speedup, [0.1, 0.5, 0.9])
    text = f"{worth:,} of {plural(n, 'client')} ({name}) should collaborate: "
    text += f"predicted to learn as if each had at least {WORTH:g} times its rows"
    if n >= FEW:
        text += (
            f". The median of all is {middle:.2f} times, the middle four fifths lie between {low:.2f} and {high:.2f}"
        )
    else:
        shown = zip(frame.index, speedup, strict=True)
        text += f" ({listed((f'{label} {value:.2f} times' for label, value in shown if value >= WORTH), FEW)})"
    yield f"{text}."
    if worth < n:
        rest = frame.index[speedup < WORTH]
        yield f"Next to nothing is promised to {listed(rest)}; what weight others have there is a hedge."


def _over_rows(advice: Advice) -> Iterator[str]:
    table, method = advice.evidence, advice.settings.get("method")
    mean = {str(n): float(v) for n, v in table["loss_rows"].items()}
    losses = {name: f"{value:.4g}" for name, value in mean.items()}
    if "together" not in mean:
        both = f"{losses['local']} for clients alone, and {losses['pooled']} for one pooled model"
        yield f"On held-out rows the mean {advice.loss} is {both}."
        return
    how = f"by {method}, the best method that is neither" if method else "with their collaborators"
    yield (
        f"On held-out rows the mean {advice.loss} is {losses['local']} for clients alone, {losses['together']} {how}, "
        f"and {losses['pooled']} for one pooled model."
    )
    others = method or "the collaborators"
    if mean["pooled"] < min(mean["together"], mean["local"]):
        yield f"One pooled model does better over rows than {others}: take it, or one that ties all clients."
    if mean["local"] < mean["together"]:
        yield f"Clients alone do better over rows than with {others}" + (
            "." if method else ": what is predicted is not borne out here."
        )


def _measured(advice: Advice) -> Iterator[str]:
    gain = advice.clients["gain"].dropna().to_numpy()
    _, low, high = over_clients(gain)
    interval = f" (95% interval {low:.3g} to {high:.3g})" if len(gain) >= FEW else ""
    yield (
        f"A client gains {gain.mean():.3g} in the mean{interval} and {np.median(gain):.3g} in the median over being "
        f"alone; {np.mean(gain > 0.0):.0%} gain."
    )


def _agreement(advice: Advice) -> Iterator[str]:
    """Prediction against measurement, where the model alone is one; and what theory does not know of the others."""
    frame, settings, tested = advice.clients, advice.settings, advice.clients["gain"].notna()
    if "predicted_gain" not in frame:
        return
    enough = frame["rows"] * (1.0 - settings["test_fraction"]) >= OWN_ROWS * settings["columns"]
    sound, left = frame[tested & enough], frame[tested & ~enough]
    if len(sound):
        yield from _compared(sound, len(sound) < int(tested.sum()))
    if len(left):
        yield (
            f"For {plural(len(left), 'client')} with fewer than {OWN_ROWS} training rows to each of "
            f"{advice.settings['columns']} columns theory does not hold, as a model alone may be off by any amount: "
            f"predicted was a gain of {left['predicted_gain'].median():.3g} in the median, measured "
            f"{left['gain'].median():.3g}."
        )


def _compared(frame: pd.DataFrame, some: bool) -> Iterator[str]:
    predicted, gain = frame["predicted_gain"].to_numpy(), frame["gain"].to_numpy()
    whose = f"For {plural(len(frame), 'client')} with rows enough for a model of their own" if some else "In the mean"
    text = f"{whose}, theory predicted a gain of {predicted.mean():.3g} and {gain.mean():.3g} was measured"
    if len(frame) >= FEW:
        _, low, high = over_clients(gain)
        verdict = "they agree" if low <= predicted.mean() <= high else "they differ by more than chance"
        if not low <= predicted.mean() <= high:
            verdict += f": theory promised too {'much' if predicted.mean() > high else 'little'}"
        r = np.corrcoef(predicted, gain)[0, 1] if predicted.std() > 0.0 and gain.std() > 0.0 else np.nan
        together = f" Client by client they correlate by {r:.2f}." if np.isfinite(r) else ""
        yield f"{text} (95% interval {low:.3g} to {high:.3g}): {verdict}.{together}"
    else:
        few = f"{plural(len(frame), 'client')} {'are' if len(frame) > 1 else 'is'}"
        yield f"{text}; {few} too few to say whether that is chance."
    inside = (frame["gain_low"] <= predicted) & (predicted <= frame["gain_high"])
    known = frame["gain_low"].notna()
    if known.any():
        share = inside[known].mean()
        yield f"The prediction lies in the 95% interval of a client's own measured gain for {share:.0%} of them."


def _harm(advice: Advice) -> Iterator[str]:
    frame, whom = advice.clients, advice.settings.get("method") or "its collaborators"
    worse = frame[frame["gain"] < 0.0].sort_values("gain")
    if not len(worse):
        yield f"No client did worse with {whom} than alone."
        return
    sure = worse[worse["loses"]]
    times = advice.repeats
    text = f"{plural(len(worse), 'client')} did worse with {whom.removeprefix('its ')} than alone on held-out rows"
    if frame["gain_high"].notna().any():
        names = f" ({listed(sure.index)})" if len(sure) else ""
        yield f"{text}, {len(sure) or 'none'} of them beyond the noise of {times}{names}."
    else:
        more = "one split by order cannot" if advice.settings.get("order_by") else f"three {times} or more would"
        yield f"{text}; {more} say whether that is chance."


def of_clients(clients: Clients, choice: Choice | None) -> pd.DataFrame:
    """A row for each client: who it is, and what is predicted for it."""
    frame: dict[str, Any] = {}
    if clients.levels:
        frame["cluster"] = np.asarray(clients.levels[0].labels)[clients.clusters]
    frame["rows"] = clients.counts
    if choice is not None:
        frame |= {"collaborators": np.diff(choice.pairs.starts), "alpha": choice.alpha, "speedup": choice.speedup}
    return pd.DataFrame(frame, index=pd.Index(clients.labels, name=clients.name))


def of_pairs(clients: Clients, choice: Choice | None) -> pd.DataFrame:
    """A row for each pair, by client, heaviest first."""
    if choice is None:
        return pd.DataFrame(columns=["client", "collaborator", "tau", "weight"])
    pairs = choice.pairs
    order = np.lexsort((-pairs.tau, pairs.pair_main))
    labels, of, tau = np.asarray(clients.labels), pairs.pair_main[order], pairs.tau[order]
    columns = {"client": labels[pairs.main[of]], "collaborator": labels[pairs.pair_client[order]], "tau": tau}
    return pd.DataFrame(columns | {"weight": choice.alpha[of] * tau})


def measured(parts: Sequence[TableComparison], fraction: float, predicted: Sequence[Floats]) -> dict[str, Any]:
    """Columns of what held-out rows of every split say of clients alone, together and pooled.

    ``predicted`` are the gains (m,) that theory promised on the training rows of each.
    """
    whole = all_splits(parts)
    columns: dict[str, Any] = {"predicted_gain": np.mean(predicted, axis=0)}
    columns |= {"test_rows": whole.rows.sum(axis=0).astype(np.int64), "loss_alone": whole.mean("local")}
    columns |= {"loss_together": whole.mean("together"), "loss_pooled": whole.mean("pooled")}
    columns["gain"] = columns["loss_alone"] - columns["loss_together"]
    gains = np.array([part.mean("local") - part.mean("together") for part in parts])
    low, high = over_splits(gains, fraction / (1.0 - fraction))
    loses = losing(whole.losses["local"] - whole.losses["together"], whole.weight, fraction / (1.0 - fraction))
    return columns | {"gain_low": low, "gain_high": high, "loses": loses}
