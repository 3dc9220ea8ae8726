"""A federation around another one offers all that a federation does: whatever is written for one runs on the other."""

import ast
import inspect
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.codecs.compression import CompressedFederation, Compression
from coterie.engines import InProcess
from coterie.engines.privacy import Private
from coterie.federation import Federation, work
from coterie.methods.aggregation.quarantine_and_memory import Guarded
from coterie.queries import WrappedFederation

SOURCE = Path(coterie.__file__).parent
OFFERED = ("ask", "total", "mark", "restore")
WRAPPERS = {
    CompressedFederation: lambda fed: CompressedFederation(fed, {}, Compression("float32", "float32")),
    Guarded: lambda fed: Guarded(fed, {"t": 0}, {"theta": np.zeros(1)}),
    Private: lambda fed: Private(fed, clip={"n": 1.0}, noise=0.0, public=(count,)),
}


class Clients:
    def __init__(self, m):
        self.m = m

    def __len__(self):
        return self.m

    def take(self, rows):
        return Clients(len(np.arange(self.m)[rows]))


@work
def count(site):
    n = site.state.get("n", np.zeros(len(site))) + 1.0
    if site.state._unique:
        site.state["n"] = n
    return {"n": n}


@cache
def classes():
    texts = (path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py")))
    files = [ast.parse(text) for text in texts if "class " in text]
    return [node for file in files for node in ast.walk(file) if isinstance(node, ast.ClassDef)]


def test_whatever_asks_clients_is_an_engine_or_a_wrapper_that_is_tried_here():
    answering, wrapping = (
        {node.name for node in classes() if any(isinstance(base, ast.Name) and base.id == name for base in node.bases)}
        for name in ("Answering", "WrappedFederation")
    )
    asking = {
        node.name
        for node in classes()
        for f in node.body
        if isinstance(f, ast.FunctionDef) and f.name in ("ask", "total") and [a.arg for a in f.args.posonlyargs][1:]
    }
    assert answering == {"WrappedFederation", "InProcess", "Coordinator"}
    # only around sites that keep a frame (tests/methods/local_training), around clusters (its clients have none),
    # around outcomes with a dispersion (tests/methods/tree/test_dispersion), and for several methods in turn
    # (tests/deployment/coordinator/test_nets)
    alone = {"InFrame", "Unclustered", "InFamily", "Afresh"}
    assert wrapping == {wrapper.__name__ for wrapper in WRAPPERS} | alone
    # _Caller is for calculations in step, which call nothing but ``total`` (tests/methods/tree)
    assert asking - wrapping == {"Federation", "Answering", "_Caller"}


@pytest.mark.parametrize("wrapper", [WrappedFederation, *WRAPPERS], ids=lambda wrapper: wrapper.__name__)
@pytest.mark.parametrize("name", OFFERED)
def test_every_wrapper_takes_what_a_federation_takes(wrapper, name):
    assert inspect.signature(getattr(wrapper, name)) == inspect.signature(getattr(Federation, name))


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.__name__)
def test_every_wrapper_passes_on_what_it_does_not_change(wrapper):
    fed = InProcess(Clients(3))
    given = []
    ask = fed.ask
    fed.ask = lambda work, /, to=None, *, check=None, **message: given.append(check) or ask(work, to=to, **message)
    wrapped = WRAPPERS[wrapper](fed)
    assert (wrapped.fed, wrapped.clients, wrapped.ledger) == (fed, fed.clients, fed.ledger)
    assert len(wrapped.mark("first")) == 0
    assert wrapped.ask(count, to=[2], check=print)["n"].tolist() == [1.0]
    assert given == [print]
    assert fed.ask(count)["n"].tolist() == [1.0, 1.0, 2.0]
    assert len(wrapped.restore("first")) == 0
    assert wrapped.ask(count)["n"].tolist() == [1.0, 1.0, 1.0]
