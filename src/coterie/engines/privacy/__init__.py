"""Differential privacy for sums: a federation that clips and adds noise at the sites, and counts what it costs."""

from coterie.engines.privacy.gaussian_mechanism import Accountant, Event, epsilon, noise_for
from coterie.engines.privacy.private_federation import BudgetSpent, Private
from coterie.engines.privacy.site_guard import Guard

__all__ = ["Accountant", "BudgetSpent", "Event", "Guard", "Private", "epsilon", "noise_for"]
