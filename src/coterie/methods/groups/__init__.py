"""Clients in groups: models of known groups and their monitor; groups that are found, and how sure they are."""
