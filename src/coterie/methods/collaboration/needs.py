"""What main clients and their collaborators must have before they can work together."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.replies import require_all_replies
from coterie.methods.rounds.at_home import shape


def need_columns(fed: Federation, who: Collaborators, d: int) -> None:
    """Raise a CoterieError for clients that are not there, or whose models have not d parameters.

    Clients that do not answer are let pass: in a step, a gradient of another length is found too.
    """
    everyone = np.unique(who.requests)
    if len(everyone) and not 0 <= everyone[0] <= everyone[-1] < len(fed.clients):
        raise CoterieError(f"Clients are numbered from 0 to {len(fed.clients) - 1}.")
    replies = fed.ask(shape, to=everyone)
    wrong = everyone[replies.rows[replies["dim"] != d]] if replies else everyone[:0]
    if len(wrong):
        names = ", ".join(str(w) for w in wrong[:5])
        raise CoterieError(
            f"The main client's model has {d} parameters, and clients at positions {names} have another number: "
            "give all the same columns, or leave these out."
        )


@work
def count(site: Site) -> dict[str, Any]:
    """Rows of every client."""
    return {"rows": site.objective.counts}


def need_rows(fed: Federation, batch: int) -> None:
    """Raise a CoterieError for a batch of more rows than any client has."""
    most = int(require_all_replies(fed.ask(count))["rows"].max()) if batch else 0
    if batch > most:
        raise CoterieError(f"batch is {batch:,}, and no client has more than {most:,} rows: 0 takes all.")
