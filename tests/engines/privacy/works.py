"""Small clients for the tests of privacy: what each would add to a sum, as it stands."""

import numpy as np

from coterie.federation import work


class Values:
    """A vector for each client."""

    def __init__(self, v):
        self.v = np.asarray(v, dtype=np.float64)

    def __len__(self):
        return len(self.v)

    def take(self, rows):
        return Values(self.v[rows])


@work
def tell(site):
    return {"v": site.objective.v}


@work
def both(site):
    return {"v": site.objective.v, "n": np.ones(len(site))}
