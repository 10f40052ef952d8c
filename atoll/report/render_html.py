"""A page from its template, and a table of text in it: whatever is said is escaped, only pictures are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, row, text_columns

if TYPE_CHECKING:
    from jinja2 import Template

SIGNS = {"best": ("★", "best of its row"), "near": ("≈", "overlaps the best"), "clear": ("★", "clearly ahead")}


def template(name: str) -> Template:
    """A template of a page: whatever is put in is escaped, and `table` is a filter."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only what writes a page waits for it

    folder = FileSystemLoader(Path(__file__).parent / "templates")
    known = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    known.filters["table"] = html
    return known.get_template(f"{name}.html.j2")


def fact_table(pairs: Iterable[tuple[str, str]]) -> TextTable:
    """Names and values, without headings."""
    return TextTable(text_columns("", ""), tuple(row(*pair) for pair in pairs))


class _Place(NamedTuple):
    """A column of a page: whether a heading above the headings begins there, and whether spreads need room there."""

    column: TextColumn
    first: bool
    spread: bool


def html(table: TextTable) -> Markup:
    """The element `table`; the notes are its caption."""
    places = _places(table)
    notes = Markup(" ").join(table.notes)
    caption = [_tag("caption", _tag("span", notes))] if table.notes else []
    body = [line for one in table.rows for line in _row(places, one)]
    foot = _row(places, table.foot) if table.foot else ()
    parts = [*caption, *_head(places), _block("tbody", body), *(_block("tfoot", [line]) for line in foot)]
    return _block("table", parts, class_=table.style)


def _places(table: TextTable) -> list[_Place]:
    groups = ["", *(column.group for column in table.columns)]
    spreads = [any(one.filled[i].spread for one in table.rows) for i in range(len(table.columns))]
    first = [own not in ("", before) for before, own in pairwise(groups)]
    return [_Place(*one) for one in zip(table.columns, first, spreads, strict=True)]


def _head(places: Sequence[_Place]) -> Iterator[Markup]:
    """One line of headings, two where some stand above others, none where no column has a name."""
    upper: list[Markup] = []
    for group, members in groupby(places, key=lambda place: place.column.group):
        if group:
            upper.append(_tag("th", group, scope="colgroup", colspan=len(list(members)), class_="first"))
        else:
            upper += [_heading(place, rowspan=2) for place in members]
    lower = [_heading(place) for place in places if place.column.group]
    lines = [upper, lower] if lower else [[_heading(place) for place in places]]
    if any(place.column.title for place in places):
        yield _block("thead", [_tag("tr", *line) for line in lines])


def _heading(place: _Place, rowspan: int | None = None) -> Markup:
    column = place.column
    classes = ("number" if column.right else "", "first" if place.first else "", column.style)
    return _tag("th", column.title, scope="col", rowspan=rowspan, class_=classes, title=column.hint)


def _row(places: Sequence[_Place], one: TextRow) -> Iterator[Markup]:
    name, *cells = one.cells
    head = _entry("th", name, places[0], scope="row", rowspan=2 if one.below else None, class_=name.style)
    rest = (_cell(cell, place) for cell, place in zip(cells, places[1:], strict=False))  # a cell may fill several
    yield _tag("tr", head, *rest, class_=one.style, title=one.hint)
    if one.below:
        notes = (_tag("div", cell.text, title=cell.hint) for cell in one.below)
        yield _tag("tr", _tag("td", *notes, colspan=len(places) - 1), class_="below")


def _cell(cell: TextCell, place: _Place) -> Markup:
    if cell.span > 1:  # it stands for the others
        return _tag("td", Markup("<br>").join([_tag("strong", cell.text), *cell.remarks]), colspan=cell.span)
    kind = place.column.kind if place.column.right else ""
    mark = cell.mark if kind == "score" else ""
    classes = (kind, "first" if place.first else "", mark, cell.style)
    value = {"data-value": cell.value if kind == "number" else None}
    return _entry("td", cell, place, class_=classes, **value)


def _entry(tag: str, cell: TextCell, place: _Place, **attributes: object) -> Markup:
    """The hint on code belongs to the code itself: it is what was cut short."""
    if place.column.kind == "code":
        return _tag(tag, _tag("code", cell.text, title=cell.hint), **attributes)
    return _tag(tag, *_content(cell, place), **attributes, title=cell.hint)


def _content(cell: TextCell, place: _Place) -> Iterator[Markup | str]:
    if cell.mark:
        sign, label = SIGNS[cell.mark]
        yield _tag("span", sign, class_="mark", role="img", aria_label=label) + " "
    if place.column.kind == "score":
        yield cell.text if cell.value is None else _tag("span", cell.text, class_="mean")
        yield f" ± {cell.spread}" if cell.spread else ""
    else:
        yield Markup(cell.picture) or cell.text
        if place.spread and cell.text:
            yield Markup(" ") + _tag("span", f"± {cell.spread}" if cell.spread else "", class_="half")
    yield from (_tag("small", line) for line in (cell.detail, *cell.remarks) if line)


def _tag(name: str, *content: str, **attributes: object) -> Markup:
    """An element; what is not Markup is escaped, and an attribute without a value is left out."""
    given = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, one in attributes.items()
        if (value := " ".join(filter(None, one)) if isinstance(one, tuple) else one) not in ("", None)
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, given, Markup().join(content))


def _block(name: str, lines: Iterable[Markup], **attributes: object) -> Markup:
    """An element with its lines below each other."""
    return _tag(name, Markup("\n").join(["", *lines, ""]), **attributes)
