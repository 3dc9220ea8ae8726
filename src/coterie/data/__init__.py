"""Tables in, clients out."""
