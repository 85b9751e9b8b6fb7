"""How Sphinx builds these pages: ``nox -s docs``, warnings being errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "awa_actors"
author = "awa_actors authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "awa_pages"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "awa_actors"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# What stands in single backquotes in our docstrings is code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 90
