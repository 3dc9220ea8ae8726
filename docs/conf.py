"""How the documentation is built; every warning is an error there, broken links included."""

from coterie import __version__

project = "coterie"
author = copyright = "the coterie maintainers"
version = release = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {"description": "One model for every client of a federation."}
html_show_sourcelink = False
suppress_warnings = ["toc.not_included"]  # index.md links the pages in sentences
