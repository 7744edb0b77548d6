"""`picture`: drawn by the library when the site is built and set into the page as SVG.

:::{picture} circle                             a function of figures.py
What one sees, for those who cannot see it too.
:::

:::{picture} psiqrh/desk/differences            a picture of the report on a stored study, at a scale
What one sees.
:::
"""

import figures
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attractor.report.canvas import as_svg


class Picture(SphinxDirective):
    """The content is the caption, and what is read aloud in place of the picture."""

    required_arguments = 1
    has_content = True
    option_spec = {"narrow": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.note_dependency(figures.__file__)
        caption = self.parse_content_to_nodes()
        described = " ".join(node.astext() for node in caption)
        figure = figures.of_study(*name.split("/")) if "/" in name else getattr(figures, name)()
        svg = as_svg(figure, name.replace("/", "-"), described)
        kind = "picture narrow" if "narrow" in self.options else "picture"
        opening = nodes.raw("", f'<figure class="{kind}"><div class="drawing">{svg}</div><figcaption>', format="html")
        return [opening, *caption, nodes.raw("", "</figcaption></figure>", format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
