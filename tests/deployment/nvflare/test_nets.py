"""A net compared over a real NVFlare deployment: the numbers of one process."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare")

import coterie
from coterie.deployment.site.site_toml import Member
from tests.deployment.coordinator.test_nets import MODULE, SITES, STEPS, here, same
from tests.deployment.nvflare.deployed import deployed

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),
]


def test_methods_are_compared_on_a_net_of_three_sites_as_in_one_process(tmp_path):
    with deployed(tmp_path, SITES, start=False) as place:
        for name in SITES:
            (place.site(name) / "made_nets.py").write_text(MODULE)
            Member(name, allow=("made_nets:make",)).write(place.site(name))
        place.start()
        asked = {"methods": ["fedavg", "ditto"], "rounds": STEPS, "seed": [3]}
        there = coterie.compare(tmp_path, coterie.Torch("made_nets:make"), **asked)
        again = coterie.compare(tmp_path, coterie.Torch("made_nets:make"), **asked, engine={"name": "nets-1"})
    names = ["local", "fedavg", "ditto"]
    same(there, here(names, [3], rounds=STEPS), names)
    assert (again == there).all(axis=None)  # a run that is done asks nobody, and keeps its seconds
