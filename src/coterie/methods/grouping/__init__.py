"""Groups that are not known: clients are assigned to them, their number is chosen, and how sure it is is said."""
