"""The template filled in: one HTML text that asks for nothing else, and whose policy says so."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from snip.common.text import STYLE, escaped

ASSETS = Path(__file__).with_name("assets")
# uPlot draws the curves: 51 kB, no dependencies, no styles of its own making, logarithmic axes,
# and new points without a redraw of the page. Plotly would be 4.5 MB in every report.
SCRIPTS = (
    "vendor/uplot.js",
    "theme.js",
    "curves.js",
    "arranging.js",
    "tabs.js",
    "explorer.js",
    "page.js",
)
STYLES = ("vendor/uplot.css", "page.css")
# Blocks of the template that change while a run trains; the rest is as it was when the page was
# opened.
LIVE = ("headline", "overview", "compare", "time", "repeat")
MARK = "<!-- snip report"  # how the second line of every page begins: it tells ours from others'


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _harmless(value: Any) -> Any:
    """Text without control characters, which may turn the direction of what follows."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return escaped(value, keep="\n") if plain else value


@cache
def _assets() -> tuple[list[str], str]:
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS]
    style = STYLE + "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in STYLES)
    return scripts, style


def policy(*, live: bool) -> str:
    """A Content-Security-Policy that allows the page's own scripts and style, and nothing else."""
    scripts, style = _assets()
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(_hash(script) for script in scripts),
        "style-src": _hash(style),
        "img-src": "data:",  # the empty icon, without which browsers ask for one
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def page(story: dict[str, Any], data: dict[str, Any], *, live: bool) -> str:
    """The whole page."""
    scripts, style = _assets()
    return _template().render(
        **story,
        data=data | {"live": live},
        mark=Markup(MARK),
        policy=policy(live=live),
        scripts=[Markup(script) for script in scripts],
        style=Markup(style),
    )


def live_parts(story: dict[str, Any]) -> dict[str, str]:
    """The parts of the page that change while a run trains, by name."""
    template = _template()
    context = template.new_context(story)
    return {name: "".join(template.blocks[name](context)) for name in LIVE}


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
