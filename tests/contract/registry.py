"""All rows of the contract suite: every law is tried on each."""

from __future__ import annotations

from functools import partial

from tests.contract.baseline_cases import BASELINES
from tests.contract.cases import CASES as FIRST
from tests.contract.cases import Case, dim, grouped, quadratic, streamed
from tests.contract.deep_cases import DEEP
from tests.contract.found_cases import FOUND
from tests.contract.group_cases import GROUPS
from tests.contract.grouping_cases import GROUPING
from tests.contract.more_baseline_cases import MORE_BASELINES
from tests.contract.network_cases import NETWORK_EXACT
from tests.contract.similarity_cases import SIMILARITY, found, network_run

NETWORK = [
    streamed(
        name,
        partial(network_run, dim=dim, **options),
        finish=found,
        problem=grouped if options.get("batch") else quadratic,
        per_client=("Z",),
        tolerance=1e-6,  # the proximal step is solved to a gap, not to the last bit
        random="batch" in options,
    )
    for name, options in SIMILARITY.items()
]
EXACT_NETWORK = [
    Case(
        name,
        row["run"],
        problem=partial(grouped, family=row["family"]),
        per_client=row["per_client"],
        tolerance=1e-6,
    )
    for name, row in NETWORK_EXACT.items()
]
CASES = [*FIRST, *BASELINES, *GROUPING, *FOUND, *MORE_BASELINES, *DEEP, *GROUPS, *NETWORK, *EXACT_NETWORK]
