"""A site's guard in a deployed run: it counts its own clients, whatever run asks."""

import pytest

pytest.importorskip("dp_accounting")

from coterie.deployment.coordinator.run import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.site.receiver import SiteReceiver
from coterie.errors import CoterieError
from tests.deployment.coordinator.test_training import FACTORY, OPTIONS, SITES, TASK, found
from tests.deployment.hospitals import begin, transport
from tests.deployment.sites import of_own_code
from tests.messages import names

NOISY = {"clip": 1.0, "noise": 2.0}


def place(tmp_path, hide):
    config = Config("toy", "nvflare", sites=SITES, privacy={**NOISY, "hide": hide})
    rules = {"min_group": 1, "privacy": {**NOISY, "epsilon": 20.0}}
    return of_own_code(tmp_path, config, "factory_of_softmax", FACTORY, **rules)


@pytest.mark.parametrize("hide", ["site", "all"])
def test_guards_of_sites_let_through_what_hides_behind_their_own_noise(tmp_path, hide):
    coordinator, homes = place(tmp_path, hide)
    home = begin(coordinator, "r", {"program": "fedavg", "task": TASK, "options": OPTIONS | {"C": 1.0, "rounds": 2}})
    if hide == "all":
        with pytest.raises(CoterieError, match=names("noise site's clients less 2")):
            run(transport(homes), coordinator, "r")
        return
    run(transport(homes), coordinator, "r")
    assert "epsilon" in found(home)[1]["privacy"]
    assert 0.0 < SiteReceiver(homes[0])._guard.spent < 20.0
