"""Numbers and findings in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import joined
from coterie.evidence.comparison import ENOUGH, less, median_ratio
from coterie.families import family_named
from coterie.results.model import Model, Nodes

if TYPE_CHECKING:
    from coterie.results.fit_result import FitResult

WORDS = 20  # of a headline at most
NAMES = 8  # clients that are named in a sentence at most


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits: ``"0.0123"``, ``"1,234"``, ``"1.23e-06"``; "–" for none."""
    if not math.isfinite(value):
        return "–"
    if value == 0.0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -4 or exponent > 8:
        return _signed(f"{value:.{digits - 1}e}")
    return _signed(f"{value:,.{max(digits - 1 - exponent, 0)}f}")


def decimals(values: Iterable[float], digits: int = 4) -> int:
    """Decimals that give the largest of some numbers so many significant digits, for a column of them."""
    sizes = [abs(v) for v in values if math.isfinite(v) and v != 0.0]
    return min(max(digits - 1 - math.floor(math.log10(max(sizes))), 0), 6) if sizes else 0


def fixed(value: float, places: int) -> str:
    """A number with so many decimals; "–" for none."""
    return _signed(f"{value:,.{places}f}") if math.isfinite(value) else "–"


def strength(value: float) -> str:
    """A strength of ties, which may be infinite."""
    return "∞" if math.isinf(value) else number(float(value))


def percent(share: float) -> str:
    """A share between 0 and 1: "82%", never rounded to all or none."""
    if not math.isfinite(share):
        return "–"
    if 0.0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1.0 else f"{share:.0%}"


def _signed(text: str) -> str:
    """Without the sign of a number that is rounded to zero, and with a true minus."""
    return text.replace("-", "−") if text.strip("-0.,") else text.lstrip("-")


def amount(size: float) -> str:
    """Bytes: "81.2 kB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{number(size)} {unit}"
        size /= 1000
    return f"{number(size)} TB"


def duration(seconds: float) -> str:
    """Seconds: "0.37 s", "2 min 5 s"."""
    if seconds < 60:
        return f"{number(seconds, 2 if seconds < 10 else 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest} s"


_NOUNS = (
    "bank branch center centre city class classroom client clinic community company country county "
    "customer department device district donor donors family farm firm group hospital household industry "
    "laboratory library lot museum neighborhood neighbourhood office participant patient person plant "
    "practice product province region school sector seller shop site speaker state store student subject "
    "supplier teacher team town university user village ward woman women worker"
)


def one(name: str) -> str:
    """A column's name as a noun: "school_id" → "school"; a name that is no known noun → "comm group"."""
    word = re.sub(r"[ _](id|no|nr|number|code|name)$", "", name.strip(), flags=re.IGNORECASE).replace("_", " ").strip()
    if not word:
        return "client"
    return word if word.lower().split()[-1] in _NOUNS.split() else f"{word} group"


def several(name: str) -> str:
    """The plural of :func:`one`."""
    word = one(name)
    if word.lower().endswith("woman"):
        return f"{word[:-2]}en"
    if word.endswith(("ss", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return f"{word[:-1]}ies"
    return word if word.endswith("s") else f"{word}s"


def counted(n: int, name: str) -> str:
    """So many of them: "1 school", "160 schools"."""
    return f"{n:,} {one(name) if n == 1 else several(name)}"


def short(label: object, most: int = 40) -> str:
    """A label that fits into a line."""
    text = " ".join(str(label).split()) or "(empty)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else text


def baseline(result: FitResult) -> str:
    """What the recommended method is first compared with: local models, or the pooled one where local ones win."""
    return "pooled" if result.recommended == "local" else "local"


def centre(model: Model) -> str:
    """The column of the clusters that clients are pulled to; "" where all clusters have the model of all clients."""
    return model.levels[0].name if any(Nodes(model).varies[1:-1]) else ""


def against(method: str, client: str) -> str:
    """A baseline as the other side of a comparison."""
    return "one model for all" if method == "pooled" else f"a model of its own for every {one(client)}"


def headline(result: FitResult) -> str:
    """The answer in one claim of at most ``WORDS`` words: which method, and by how much for whom."""
    from coterie.evidence.table_comparison import may_be_as_good

    client, table, best = result.model.client_name, result.comparison, result.recommended
    if table.empty or best not in table.index:
        return f"The {result.method} model of {result.formula} for {counted(len(result.model.labels), client)}."
    other = baseline(result)
    tied = may_be_as_good(table, best) if "behind_best_low" in table else []
    lowest = table["loss_rows"][best] <= table["loss_rows"].min()
    text = f"The {best} model {'predicts best' if not tied else 'has the lowest loss' if lowest else 'is recommended'}"
    if other not in table.index or best == other:
        return f"{text}."
    claims = [f"{text}{_gained(result, other, noun)}." for noun in (one(client), "client")]
    return claims[len(claims[0].split()) > WORDS]


def _gained(result: FitResult, other: str, noun: str) -> str:
    """What the median client gains over a baseline; where there are no losses of clients, what there is over rows."""
    than = "alone" if other == "local" else "pooled"
    gains = result.client_gains.get(f"gain_over_{other}")
    if gains is None or not np.isfinite(gains).any():
        losses = result.comparison["loss_rows"]
        return f": over rows {less(float(losses[result.recommended]), float(losses[other]), result.loss)} than {than}"
    best, theirs = (
        result.client_gains.loc[np.isfinite(gains), f"loss_{name}"].to_numpy(dtype=np.float64)
        for name in ("recommended", other)
    )
    ratio = median_ratio(best, theirs)
    rows = " over rows, but" if ratio > 1.0005 else ":"  # what is best over rows need not be so for most
    return f"{rows} the median {noun} has {less(ratio, 1.0, result.loss)} than {than}"


def who_loses(result: FitResult) -> str:
    """Which clients lose by the recommended method beyond the noise of splits, in a sentence; "" where not known."""
    client, gains, other = result.model.client_name, result.client_gains, baseline(result)
    if f"worse_than_{other}" not in gains or result.recommended == other:
        return ""
    if result.settings.get("splits", ENOUGH) < ENOUGH:
        return f"Which {several(client)} lose takes {ENOUGH} splits to tell."
    who = gains.index[gains[f"worse_than_{other}"].to_numpy(dtype=bool)]
    tested = int(gains[f"gain_over_{other}"].notna().sum())
    beyond = f"against {'models of their own' if other == 'local' else 'one model for all'} beyond the noise of splits"
    some = counted(tested, client) + " that were tested" * (tested < len(gains))
    if not len(who):
        return f"None of {some} loses {beyond}."
    names = joined([short(label) for label in who[:NAMES]] + [f"{len(who) - NAMES:,} more"] * (len(who) > NAMES))
    return f"{len(who):,} of {some} lose{'s' * (len(who) == 1)} {beyond}: {names}."


_TIED = {
    "isotropic": "These are one variance that was learned, in standard units of the columns.",
    "two": "These are two variances that were learned, one for intercepts and one for slopes in standard units.",
}


def variance_sentences(result: FitResult) -> list[str]:
    """How far clients and clusters stray, one sentence for each level."""
    table, levels = result.variance_components, Nodes(result.model).levels
    keys = ["client", *(("cluster",) if len(levels) == 1 else (v.name for v in levels))]
    columns = [result.model.client_name, *(v.name for v in levels)]
    out = []
    for i, key in enumerate(keys):
        rows = table[(table["level"] == key) & (table["term2"] == "")]
        tied = i < len(levels) and len(levels[i].labels) > 1
        if len(rows):
            around = f"their {one(columns[i + 1])}" if tied else "the global model"
            out.append(_level_sentence(several(columns[i]), around, rows))
    if out and result.settings.get("covariance") in _TIED and len(result.model.personal) > 1:
        out.append(_TIED[result.settings["covariance"]])
    if out and "centred" in result.model.info and len(result.model.personal) > 1:
        out.append("Intercepts are those of the models at the means of the columns.")
    if (family := family_named(result.family)).has_dispersion:
        sd, client = number(float(np.sqrt(result.model.sigma2))), one(result.model.client_name)
        return [*out, f"Within a {client}, outcomes scatter around its model with a standard deviation of {sd}."]
    return [*out, f"Standard deviations are on the scale of the {family.predictor}."]


def _level_sentence(who: str, around: str, rows: Any) -> str:
    if "cluster" in rows and len(rows["cluster"].unique()) > 1:
        ranges = []
        for term, sds in rows.groupby("term", sort=False)["sd"]:
            ranges.append(f"{number(sds.min())} to {number(sds.max())} in {term_name(term)}")
        return sentence(f"{who} differ around {around} by a standard deviation of its own in each: {joined(ranges)}")
    differ = [(term_name(t), sd) for t, sd in zip(rows["term"], rows["sd"], strict=True) if sd > 0]
    same = [term_name(t) for t, sd in zip(rows["term"], rows["sd"], strict=True) if not sd > 0]
    if not differ:
        return sentence(f"{who} do not differ from {around}, in {joined(same)}")
    (name, sd), *rest = differ
    if rest:
        parts = [f"in {name} (standard deviation {number(sd)})", *(f"in {t} ({number(v)})" for t, v in rest)]
        text = f"{who} differ around {around} {joined(parts)}"
    else:
        text = f"{who} differ in {name} with a standard deviation of {number(sd)} around {around}"
    return sentence(text + (f"; they do not differ in {joined(same)}" if same else ""))


def term_name(term: Any) -> str:
    """A term in a sentence."""
    return "their intercept" if term == "(Intercept)" else str(term)


def plain_text(value: Any) -> str:
    """A setting as a reader wants it: lists cut short, no brackets and quotes."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return _cut([f"{k}: {plain_text(v)}" for k, v in list(value.items())[:13]], len(value))
    if isinstance(value, (list, tuple, np.ndarray)):
        return _cut([plain_text(v) for v in list(value[:13])], len(value)) or "none"
    return str(value)


def _cut(parts: list[str], total: int) -> str:
    return ", ".join(parts[:12]) + (f", and {total - 12:,} more" if total > 12 else "")


def some(value: Any, shown: Callable[[float], str] = number) -> str:
    """A number, a few, or a range, by default with three digits."""
    if isinstance(value, dict):
        return f"{shown(value['from'])} to {shown(value['to'])}"
    return ", ".join(shown(float(v)) for v in np.atleast_1d(value))
