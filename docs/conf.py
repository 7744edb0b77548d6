"""The site: `make docs` builds it of these pages, docstrings and stored results, without network."""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE), str(HERE.parent)]  # the last for the probes of papers/

project = "attractor"
version = release = version_of("attractor")
extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "pictures", "measured", "reference", "notebooks"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_mock_imports = ["datasets", "lm_eval", "ray"]  # large, and no page is about what is in them
python_maximum_signature_line_length = 88

highlight_language = "none"  # literal blocks of docstrings are formulas
html_theme = "basic"
html_title = "attractor"
templates_path = ["_templates"]
html_static_path = ["_static"]
html_js_files = ["site.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_domain_indices = False
pygments_style = "bw"  # classes only: _static/site.css has their colours, light and dark
smartquotes = False  # a prime is a transpose


def setup(app: Sphinx) -> None:
    """Take directives out of the comments that hide them where a page is read on GitHub: <!-- :::{costs} overhead"""

    def uncomment(*event: Any) -> None:
        event[-1][0] = re.sub(r"^(?:<!-- )?(:.*?)(?: -->)?$", r"\1", event[-1][0], flags=re.MULTILINE)

    app.connect("source-read", uncomment)
    app.connect("include-read", uncomment)
