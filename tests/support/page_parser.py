"""What a page of HTML would fetch, and whether it is whole."""

from html.parser import HTMLParser

_VOID = {"meta", "input", "br", "link", "img"}


class Loads(HTMLParser):
    """Everything a page would fetch, every id and tag, and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.open += [] if tag in _VOID else [tag]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.fetched += [v or "" for k, v in attrs if k in ("src", "srcset", "href", "xlink:href", "data", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
