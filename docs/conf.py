"""How the documentation is built, without network; every warning is an error, broken links included."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.nodes import make_refnode

import coterie
from coterie.options import Checked, declared

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from docs import generate  # beside this file, and not installed

project = "coterie"
author = copyright = "the coterie maintainers"
version = release = coterie.__version__
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["**/README.md"]
default_role = "literal"  # names in docstrings stand in single backticks
nitpicky = True

myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "dollarmath"]
myst_dmath_double_inline = True

autodoc_typehints = "none"  # docstrings say what a parameter may be
autodoc_member_order = "alphabetical"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "coterie"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navigation_depth": 3,
    "show_toc_level": 2,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def as_mathml(self, node):
    """A formula as browsers draw it by themselves: no script is fetched."""
    block = isinstance(node, nodes.math_block)
    text = tex2mathml(node.astext(), as_block=block)
    self.body.append(f'<div class="formula">{text}</div>' if block else text)
    raise nodes.SkipNode


def internal_reference(app, env, node, contnode):
    """A name of a public class by its home, as a link; of another object that exists as code; else it is broken."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip("~")
    tried = [target, f"{node.get('py:module')}.{target}"]
    tried += [f"{module}.{target}" for module in dict.fromkeys(coterie._HOMES.values())]
    for name in tried:
        if (public := generate.public_name(name)) is not None:
            documented = env.get_domain("py").objects.get(public)
            if documented is None:
                return contnode
            return make_refnode(app.builder, node["refdoc"], documented.docname, public, contnode, public)
    return None


def with_options(app, what, name, obj, options, lines):
    """A docstring without marks for doctest, and with the options that are declared in a class."""
    lines[:] = [re.sub(r"\s+# doctest: \+SKIP", "", line) for line in lines]
    rows = declared(obj).values() if what == "class" and issubclass(obj, Checked) else []
    if rows:
        lines += ["", "Parameters", "----------"]
    for row in rows:
        shown = "" if row.default is inspect.Parameter.empty else f", default {row.default!r}"
        lines += [f"{row.name} : {row.allowed}{shown}", f"    {row.option.text}"]


def own_members_alone(app, what, name, obj, skip, options):
    """Options that only another library's base class explains are left to it."""
    module = getattr(inspect.unwrap(obj) if callable(obj) else obj, "__module__", "") or ""
    return True if what == "class" and module.startswith("sklearn.") else None


def setup(app):
    app.add_html_math_renderer("mathml", (as_mathml, None), (as_mathml, None))
    app.connect("config-inited", lambda app, config: generate.write(Path(app.srcdir) / "generated"))
    app.connect("missing-reference", internal_reference)
    app.connect("autodoc-process-docstring", with_options, priority=400)  # before numpydoc reads it
    app.connect("autodoc-skip-member", own_members_alone)
    return {"parallel_read_safe": True}
