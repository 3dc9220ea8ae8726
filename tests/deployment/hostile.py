"""Formulas that nobody means well by, and roles of columns, at random: what attackers would try, and some that fit."""

from __future__ import annotations

COLUMNS = ("age", "sex", "chol", "los", "event", "ward")
MILD = (
    *("age", "sex", "chol", "event", "log(chol)", "sqrt(age)", "sex:chol", "bs(age, df=4)", "poly(chol, 2)", "C(sex)"),
    *("scale(age)", "age * sex", "center(chol)"),
)
STRANGE = ("\u0430ge", "age\u200b", "\uff41ge", "a" * 5000, "age" * 300, "__class__")


def formula(rng) -> str:
    """One side ~ the other."""
    if rng.random() < 0.4:  # what is answered must not tell of a row either
        left = rng.choice(["los", "chol", "event", "age", "log(los)"])
        return f"{left} ~ {' + '.join(rng.choice(MILD, rng.integers(1, 4)))}"
    lefts = ["los", "chol", "event", "age", "sex", "`los`", term(rng), "los + age", ""]
    text = f"{rng.choice(lefts)} ~ {' + '.join(term(rng) for _ in range(rng.integers(1, 4)))}"
    if rng.random() < 0.05:
        text = text.replace("age", rng.choice(STRANGE))
    return text + rng.choice(["", "", "", "", " - 1", " + 0", " | ward", " # los", ";1"])


def term(rng, depth: int = 0) -> str:
    """Something allowed, or something else."""
    c, d = rng.choice(COLUMNS, 2)
    n, k = f"{rng.normal(90, 40):.1f}", int(rng.integers(0, 60))
    inner = term(rng, depth + 1) if depth < 2 else c
    kinds = [
        *(c, c, f"C({c})", f"{c}:{d}", f"{c} * {d}", f"({c} + {d} + los)**{k}", ".", f"`{c}`", f"{c} / {d}"),
        *(f"log({c})", f"sqrt({c})", f"exp({c})", f"center({c})", f"scale({c})", f"poly({c}, {k % 9})", f"-{inner}"),
        *(f"I(1/(1-({c} >= {n})))", f"I({c} >= {n})", f"I({inner})", f"{c} > {n}", f"{{{c} == '{n}'}}", n, f"{n}:{c}"),
        *(f"bs({c}, knots=[{n}, {n}1])", f"bs({c}, df=4, lower_bound={n})", f"C({c}, levels=['m'])", f"lag({c}, {k})"),
        *(f"C({c}, contr.treatment(base='m'))", f"C({c}, Treatment('m'))", f"bs({c}, df={k})"),
        *(f"log({inner} - {n})", f"np.clip({c}, {n}, {n}9)", f"{c}.values[{k}]", f"{c}[{k}]", f"{c}.__class__"),
        *(f"np.sign({c} - {n})", f"exp(exp({c}))", f"I(1e308 * {c})", f"cr({c}, df={k})", f"scale({c}, {n})", f"~{c}"),
        *(f"I({c} == {d})", f"np.floor({c} / {n})", f"({inner}) %in% {c}", f"{c}^{k}", f"np.where({c} > {n}, 1, 0)"),
        *(f"abs({c})", f"eval('{c}')", f"hashed({c}, levels=2)", f"standardize({c})"),
    ]  # fmt: skip
    return str(rng.choice(kinds))


def task(rng, schema) -> dict:
    """A task with the formula; now and then with other roles, and with a schema that is not that of the site."""
    own = {name: dict(column) for name, column in schema.items()}
    if rng.random() < 0.2:
        change = str(rng.choice(["low", "high", "center", "scale", "levels", "type", "unit"]))
        values = {"levels": ["m"], "type": str(rng.choice(["number", "category", "label"])), "unit": "years"}
        own[str(rng.choice(COLUMNS))][change] = values.get(change, float(rng.normal(90, 40)))

    def some(names, share):
        return None if rng.random() > share else str(rng.choice(names))

    return {
        "kind": "table", "formula": formula(rng), "schema": own, "cluster": (), "offset": some(COLUMNS, 0.15),
        "family": some(["binomial", "poisson", "x"], 0.3) or "gaussian", "client": some(["ward", "sex", "age"], 0.3),
        "hold": None if rng.random() < 0.8 else {"seed": 1, "repeat": 0, "fraction": float(rng.uniform(-0.1, 1.1))},
        "weights": some(COLUMNS, 0.2), "missing": str(rng.choice(["error", "drop"])),
    }  # fmt: skip
