"""docs/peers.md and its figure, from results.json, peers.toml and targets.toml: ``python -m benchmarks.peers.page``."""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RESULTS, PAGE, FIGURE = HERE / "results.json", DOCS / "peers.md", DOCS / "peers.svg"
ABOUT = tomllib.loads((HERE / "peers.toml").read_text("utf-8"))
TARGETS = tomllib.loads((HERE / "targets.toml").read_text("utf-8"))["row"]
PEERS = tuple(ABOUT)
NAMES = {peer: import_module(f"benchmarks.peers.{peer}").NAME for peer in PEERS}


def seconds(s: float) -> str:
    """Seconds or milliseconds."""
    return f"{s:.1f} s" if s >= 0.995 else f"{1e3 * s:.0f} ms" if s >= 0.00995 else f"{1e3 * s:.1f} ms"


def times(ratio: float) -> str:
    """A ratio to two digits, or as an integer."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 0.995 else f"{ratio:.2f}"


def answers(problem: dict[str, Any], row: dict[str, Any]) -> str:
    """Whether both found the same, and how far apart they are where not."""
    ours, theirs = row["objective"]
    gap = theirs - ours
    if "relative" in problem["agree"]:
        said = f"{abs(gap) / abs(ours):.0e} of it apart" if gap else "equal"
    elif problem["objective"].startswith("accuracy"):
        said = f"{ours:.3f} and {theirs:.3f}"
    else:
        said = f"{abs(gap):.2g} {'lower' if gap < 0 else 'higher'}" if abs(gap) >= 5e-5 else "equal to 1e-4"
    if row["apart"] is not None:
        said += f"; coefficients {row['apart']:.0e}"
    return said if row["agrees"] else f"**not the same**: {said}"


def problems(results: dict[str, Any]) -> str:
    """A table of pairs for each problem."""
    out = []
    for name, problem in results["problems"].items():
        out += [
            f"### {name}",
            "",
            f"{problem['what'][0].upper()}{problem['what'][1:]}. Compared is the {problem['objective']}.",
            "",
        ]
        out += [
            "| peer | coterie | peer | times | from, to | pairs | the peer's answer |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in sorted(problem["rows"], key=lambda row: row["ratio"]):
            low, high = map(times, row["range"])
            cells = [
                f"{NAMES[row['peer']]} {row['release']}", seconds(row["ours"]), seconds(row["theirs"]),
                times(row["ratio"]), f"{low}, {high}", str(row["pairs"]), answers(problem, row),
            ]  # fmt: skip
            out.append(f"| {' | '.join(cells)} |")
        skipped = [NAMES[peer] for peer in problem["missing"]]
        out += [*([f"\nNot installed: {', '.join(skipped)}."] if skipped else []), ""]
    return "\n".join(out)


def has() -> str:
    """What each has that the other has not."""
    rows = [
        f"| [{NAMES[peer]}]({about['source']}) | {about['theirs']} | {about['ours']} |" for peer, about in ABOUT.items()
    ]
    return "\n".join(["| peer | what it has that coterie has not | what coterie has |", "|---|---|---|", *rows])


def ratio(row: dict[str, Any]) -> float | None:
    """How far the target is reached, 1 or more where it is met; None where no one number says it."""
    if "at_least" in row:
        return row["at_least"][0] / row["at_least"][1]
    return row["at_most"][1] / row["at_most"][0] if "at_most" in row else None


def verdict(row: dict[str, Any]) -> str:
    """Whether a target is met."""
    if "reached" not in row:
        return "not measured"
    found = ratio(row)
    return "met" if row.get("met", found is not None and found >= 1.0) else "**not met**"


def where(row: dict[str, Any]) -> str:
    """The page or test that says so."""
    if "test" in row:
        return f"`{row['test'].partition('::')[0]}`"
    if "page" not in row:
        return row.get("how", "")
    page = row["page"]
    return f"[{Path(page).name}]({Path(page).name})" if page.startswith("docs/") else f"`{page}`"


def targets() -> str:
    """Every target of the plan: what was asked for, what was reached, and their ratio."""
    verdicts = [verdict(row) for row in TARGETS]
    met, missed, unknown = (verdicts.count(v) for v in ("met", "**not met**", "not measured"))
    out = [f"{len(TARGETS)} targets: {met} are met, {missed} are not, {unknown} have no figure.", ""]
    out += ["| part | what | target | reached | ratio | | where |", "|---|---|---|---|---|---|---|"]
    for row, said in zip(TARGETS, verdicts, strict=True):
        found = ratio(row)
        shown = "" if found is None else times(found) if found < 1e4 else f"{found:.0e}"
        cells = [str(row["part"]), row["what"], row["target"], row.get("reached", ""), shown, said, where(row)]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    loads = sorted(problem["load"] for problem in results["problems"].values())
    tables = {"problems": problems(results), "has": has(), "targets": targets()}
    commits = " and ".join(sorted({problem["commit"] for problem in results["problems"].values()}))
    return TEXT.format(**results | tables, commits=commits, low=loads[0], high=loads[-1])


def draw(results: dict[str, Any]) -> Any:
    """How many times as long each peer took, on a logarithmic axis."""
    from matplotlib.figure import Figure

    from papers.pictures import BLUE, GREY, RED

    found = {name: sorted(p["rows"], key=lambda r: r["ratio"]) for name, p in results["problems"].items()}
    lines = [(name, row) for name, rows in found.items() for row in rows]
    figure = Figure(figsize=(7.2, 0.6 + 0.21 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for y, (_, row) in enumerate(reversed(lines)):
        colour = BLUE if row["ratio"] >= 1.0 else RED
        axes.plot(row["range"], [y, y], color=colour, linewidth=1.2)
        axes.plot(
            row["ratio"], y, "o", color=colour, markersize=4.5, markerfacecolor=colour if row["agrees"] else "white"
        )
    axes.set_yticks(range(len(lines)), [f"{name}: {NAMES[row['peer']]}" for name, row in reversed(lines)])
    axes.axvline(1.0, color=GREY, linewidth=1.0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("processor time of the peer over that of coterie (hollow: another answer)")
    return figure


def write() -> None:
    """The page and the figure."""
    from papers.pictures import render

    results = json.loads(RESULTS.read_text("utf-8"))
    PAGE.write_text(page(results), encoding="utf-8")
    FIGURE.write_bytes(render(lambda: draw(results)))


TEXT = """# Beside peers

What other libraries do with the same problems, how long they take, and whether they find the same. `python -m
benchmarks.peers` runs it anew: a peer is a file of at most 80 lines in `benchmarks/peers`, and one that is not
installed is skipped. The page is made from what was measured, by `python -m benchmarks.peers.page`.

## How it was measured

Each side is a process of its own with one thread, which fits when it is told to; both take turns, after one fit of
each that is not counted. Times are processor seconds, those of processes that a peer starts included, which other
work on the machine disturbs less than it does a clock; the median of the pairs counts, and the range of their ratios
stands beside it. Where pairs take long there are fewer. coterie is timed from the table to the coefficients with
their standard errors and degrees of freedom, which have how unsure variances are, as no peer's here do; averaging and
convex clustering from arrays on. Mixed models are by maximum likelihood, which all peers have. Two answers are the
same if log-likelihoods are within .01 (.1 by Laplace's approximation) and coefficients within 1e-3 (5e-3), losses of
convex clustering within 2e-6 of them, accuracies within .03, as shuffles differ.

Measured on {machine}, {date}, at a load of {low} to {high}, coterie {coterie} at {commits}. Beside other work on
the same cores short fits lose more than long ones, and ratios of one pair say little of their last digits.

![Processor time of each peer over that of coterie, for each problem, on a logarithmic axis; left of 1 the peer is
faster](peers.svg)

## Problems

{problems}
With its defaults GPBoost ends at a lower likelihood; lme4 ends the logistic fit early (`tests/reference/test_lme4.py`
says how). In "sites" all are in one process, and pda and coterie fit from sums. PFLlib drops a client's last rows that
fill no batch. Flower and NVFlare start processes and send models between them: the plain loop shows what the steps
themselves take.

## What each has

{has}

## Targets

What was asked for in each part of the plan, and what pages of the project say was reached. The ratio is from 1 on
where a target is met. Where there is more than one figure the worst counts.

{targets}
"""


if __name__ == "__main__":
    write()
