"""Differential privacy for sums: a federation that clips and adds noise at the sites, and counts what it costs."""

from coterie.engines.privacy.account import Account, Event, epsilon, noise_for
from coterie.engines.privacy.guard import Guard
from coterie.engines.privacy.private import BudgetSpent, Private

__all__ = ["Account", "BudgetSpent", "Event", "Guard", "Private", "epsilon", "noise_for"]
