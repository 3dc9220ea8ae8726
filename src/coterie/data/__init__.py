"""Tables in, clients out."""

from coterie.data.clients import Clients, Level
from coterie.data.design import Design
from coterie.data.labels import find_labels
from coterie.data.prepare_table import check_outcome, prepare
from coterie.data.table import Table, to_pandas
from coterie.data.table_files import read_table, write_table

__all__ = [
    "Clients",
    "Design",
    "Level",
    "Table",
    "check_outcome",
    "find_labels",
    "prepare",
    "read_table",
    "to_pandas",
    "write_table",
]
