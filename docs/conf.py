"""How Sphinx builds these pages: ``nox -s docs``, warnings being errors."""

project = "awa_actors"
author = "awa_actors authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "awa_actors"
