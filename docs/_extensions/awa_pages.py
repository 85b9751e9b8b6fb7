"""Directives of these pages: pictures drawn, and reference read, from the code at the time of the build."""

import re
from typing import Any, ClassVar

import lifecycle_picture
import reference
import storage_picture
import tree_picture
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from awa_actors.cli.placement import SharedOption
from awa_actors.cli.tree import root

PICTURES = {
    "lifecycle": lifecycle_picture.lifecycle_picture,
    "tree": tree_picture.tree_picture,
    "storage": storage_picture.storage_picture,
    "planes": storage_picture.planes_picture,
}
GENERATED = {
    "lifecycle": lifecycle_picture.lifecycle_table,
    "command-line": lambda: reference.command_line_markdown(root, SharedOption),
    "settings": reference.settings_markdown,
    "errors": reference.errors_markdown,
}

OWN_SECTION = re.compile(r"^(Cancellation|Shape): (.*(?:\n +.*)*)", re.MULTILINE)


class Picture(SphinxDirective):
    """``{picture} name [panel]``: an SVG in the page."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Draw it."""
        name, *panel = self.arguments
        return [nodes.raw("", PICTURES[name](*panel), format="html")]


class Generated(SphinxDirective):
    """``{generated} name``: Markdown that is read from the code, headings included."""

    required_arguments = 1
    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """Parse it as if it stood on the page."""
        return self.parse_text_to_nodes(GENERATED[self.arguments[0]](), allow_section_headings=True)


def sections(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make our own sections of a docstring readable: a paragraph each, and none for where a rule comes from."""
    text = re.sub(r"^Source: .*(\n +.*)*", "", "\n".join(lines), flags=re.MULTILINE)
    lines[:] = OWN_SECTION.sub(lambda found: f"**{found[1]}:** {' '.join(found[2].split())}\n", text).split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("picture", Picture)
    app.add_directive("generated", Generated)
    app.connect("autodoc-process-docstring", sections, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
