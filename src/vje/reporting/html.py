"""Pages that are one file: templates filled in safely, data as JSON, arrays and pictures as base64.

Everything that is put into a template is escaped, unless it is :class:`Html` already. The templates, styles and scripts
are the files in ``page/``.
"""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vje.reporting.written import GENERATOR

KINDS = ("float32", "int32", "uint16", "uint8")
"""Types that the scripts can read."""

POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""What a browser lets the page do: run what is in the file (WebGL charts write code of their own), and ask nobody."""


class Html(str):
    """Text that is HTML, and is not escaped again."""

    __slots__ = ()


def part(name: str) -> str:
    """The text of a file in ``page/``."""
    return (files("vje.reporting") / "page" / name).read_text(encoding="utf-8")


def fill(template: str, **values: object) -> Html:
    """A template of ``page/`` with its ``$names`` replaced by escaped values.

    Args:
        template: its file's name.
        values: by name; :class:`Html` is put in as it is.
    """
    return Html(Template(part(template)).substitute({name: escaped(value) for name, value in values.items()}))


def escaped(value: object) -> Html:
    """A value as text that no browser takes for markup.

    >>> escaped("</script><b>"), escaped(Html("<b>"))
    ('&lt;/script&gt;&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """One element; ``class_`` is the attribute ``class``.

    >>> tag("td", "a < b", class_="number")
    '<td class="number">a &lt; b</td>'
    """
    words = "".join(f' {key.rstrip("_")}="{html.escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{words}>{''.join(map(escaped, children))}</{name}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str) -> Html:
    """A table whose first column names the rows; it scrolls by itself where it is too wide for the page."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    content = tag("table", tag("caption", caption, class_="unseen"), tag("thead", top), tag("tbody", *body))
    return tag("div", content, class_="scroll")


def as_json(value: Any) -> Html:
    r"""JSON that can stand inside a script element: a ``<`` in a text can end nothing there.

    >>> as_json(["</script>"])
    '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(text)


def packed(array: NDArray[Any]) -> dict[str, str]:
    """A numeric array for the scripts: type and little-endian bytes."""
    kind = array.dtype.name
    if kind not in KINDS:
        raise ValueError(f"the scripts read {', '.join(KINDS)}, got {kind}")
    raw = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return {"kind": kind, "bytes": base64.b64encode(raw).decode()}


def page(title: str, body: Html, data: Any, scripts: Sequence[str], policy: str = POLICY) -> str:
    """A whole page.

    Args:
        title: of the window.
        body: inside ``main``.
        data: what the scripts find, JSON.
        scripts: their files in ``page/``, in order.
        policy: what the browser lets it do.
    """
    from plotly.offline import get_plotlyjs

    return fill(
        "page.html",
        title=title,
        policy=policy,
        generator=GENERATOR,
        style=Html(part("page.css")),
        body=body,
        data=as_json(data),
        plotly=Html(get_plotlyjs()),
        script=Html("\n".join(part(name) for name in scripts)),
    )
