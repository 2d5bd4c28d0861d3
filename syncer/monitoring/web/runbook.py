"""Runbook: docs/runbook.md as a page, so that a problem's link works without internet access."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token
from werkzeug.wrappers import Response

from syncer.base import shipped
from syncer.monitoring.web.app import Asked

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>syncer runbook</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
</head>
<body class="text">
<p><a href="/">Status</a></p>
{content}</body>
</html>
"""


class Runbook:
    """The page, rendered once."""

    def __init__(self) -> None:
        self._page = _rendered((shipped.folder("docs") / "runbook.md").read_text("utf-8"))

    def show(self, _: Asked) -> Response:
        """The whole runbook; each entry has its name in lower case as its anchor."""
        return Response(self._page, content_type="text/html; charset=utf-8")


def _rendered(text: str) -> str:
    markdown = MarkdownIt("commonmark", {"html": False})
    tokens = markdown.parse(text)
    for place, one in enumerate(tokens):
        if one.type == "heading_open":
            one.attrSet("id", tokens[place + 1].content.lower())
        elif one.children:
            one.children = _without_other_pages(one.children)
    return _PAGE.format(content=markdown.renderer.render(tokens, markdown.options, {}))


def _without_other_pages(tokens: list[Token]) -> list[Token]:
    """The same without links to other pages, which do not ship; their text stays."""
    kept: list[Token] = []
    is_within = True
    for one in tokens:
        if one.type == "link_open":
            is_within = str(one.attrGet("href")).startswith("#")
        if is_within or one.type not in ("link_open", "link_close"):
            kept.append(one)
    return kept
