"""Clients in groups: models of known groups; groups that are found, and how sure they are."""
