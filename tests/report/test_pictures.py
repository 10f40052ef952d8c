"""What a partition looks like."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from atoll.errors import RecordError
from atoll.report import pictures, theme

COUNTS = np.array([[9, 1, 0], [0, 4, 1], [0, 0, 16]])
IMAGES = np.linspace(-0.5, 1.5, 3 * 2 * 8 * 8).reshape(3, 2, 8, 8)


def drawn(plot):
    figure = plot.draw()
    assert isinstance(figure, Figure)
    return figure.axes[0]


def bubbles_of(axes):
    """(client, class) -> diameter."""
    return {
        (int(x), int(y)): line.get_markersize()
        for line in axes.lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


def test_a_bubble_for_every_class_that_a_client_holds():
    found = bubbles_of(drawn(pictures.bubbles(COUNTS)))
    assert set(found) == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}
    # areas are in proportion, to the 24 steps that a diameter has
    largest = found[2, 2]
    for (client, label), wide in found.items():
        assert wide / largest == pytest.approx((COUNTS[client, label] / 16) ** 0.5, abs=1 / 24)


def test_the_words_say_what_is_drawn():
    plot = pictures.bubbles(COUNTS, ["cat", "dog", "eel"])
    assert plot.caption == "The area of a bubble is the number of examples; the largest has 16."
    assert plot.alt == "3 clients hold between 1 and 2 of 3 classes, in the mean 1.7."
    assert [t.get_text() for t in drawn(plot).get_yticklabels()] == ["cat", "dog", "eel"]
    assert pictures.sizes(COUNTS).caption == "3 clients: 5 to 16 examples, median 10."


def test_of_many_clients_some_are_shown_and_it_says_so():
    many = np.random.default_rng(0).poisson(3, (1000, 10))
    plot = pictures.bubbles(many)
    assert "40 of 1,000 clients are shown, evenly taken." in plot.caption
    axes = drawn(plot)
    assert max(x for x, _ in bubbles_of(axes)) == 39
    assert [t.get_text() for t in axes.get_xticklabels()][0::8] == ["0", "999"]
    wide = pictures.bubbles(np.random.default_rng(0).poisson(3, (1000, 100)))
    assert "12 of 1,000 clients" in wide.caption
    assert len(plot.svg()) < 150_000


def test_every_client_is_in_the_histogram():
    for n in ([5, 5, 5], [1, 2, 3, 1000], list(range(100)), [7]):
        axes = drawn(pictures.sizes(np.array(n)))
        assert sum(bar.get_height() for bar in axes.patches) == len(n)
        assert (axes.get_xscale() == "log") == (n == [1, 2, 3, 1000])


def test_noise_is_shown_side_by_side_and_cut_to_what_can_be_seen():
    axes = drawn(pictures.noise(IMAGES, [0, 0.1, 0.5]))
    [image] = axes.images
    mosaic = np.asarray(image.get_array())
    assert mosaic.shape == (2 * 8 + 1, 3 * 8 + 2)
    assert (mosaic.min(), mosaic.max()) == (0, 1)
    assert np.allclose(mosaic[:8, 9:17], np.clip(IMAGES[1, 0], 0, 1))
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0", "0.1", "0.5"]
    colour = np.stack([IMAGES] * 3, -1)
    assert np.asarray(drawn(pictures.noise(colour, [0, 1, 2])).images[0].get_array()).shape == (17, 26, 3)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (lambda: pictures.bubbles(np.array([1, 2])), r"counts of shape \(2,\)\. Give one row for each client"),
        (lambda: pictures.bubbles(np.zeros((3, 2), np.int64)), r"counts of shape \(3, 2\)"),
        (lambda: pictures.sizes(np.array([], np.int64)), "needs the number of examples of each client"),
        (lambda: pictures.noise(IMAGES, [1, 2]), r"images of shape \(3, 2, 8, 8\) for 2 levels"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wish, message):
    with pytest.raises(RecordError, match=message):
        wish()


def test_the_page_is_one_file_that_loads_nothing():
    plots = [pictures.bubbles(COUNTS), pictures.sizes(COUNTS), pictures.noise(IMAGES, [0, 0.1, 0.5])]
    html = pictures.page("digits <& 3 clients>", plots, [("EMD", "0.6")], lead="As asked.")
    assert "<h1>digits &lt;&amp; 3 clients&gt;</h1>" in html
    assert html.count("<svg") == html.count("<figure") == 3
    assert ">EMD<" in html
    assert "prefers-color-scheme: dark" in html
    assert not re.search(r'(src|href)="(?!#|data:)', html)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert f"var(--{theme.VARIABLES[theme.SERIES[0]]})" in html  # a colour that the dark page changes


def test_a_figure_is_laid_out_as_saving_it_would(monkeypatch):
    plots = (pictures.bubbles(COUNTS), pictures.sizes(COUNTS), pictures.noise(IMAGES, [0, 0.1, 0.5]))
    ours = [plot.svg() for plot in plots]
    monkeypatch.setattr(theme, "_lay_out", lambda figure: None)
    assert [plot.svg() for plot in plots] == ours


def test_pictures_are_the_same_every_time_and_well_formed():
    for plot in (pictures.bubbles(COUNTS), pictures.sizes(COUNTS)):
        assert plot.svg() == plot.svg()
        assert plot.picture("png") == plot.picture("png")
        assert plot.picture("png").startswith(b"\x89PNG")
        ET.fromstring(plot.svg().replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))


def test_who_holds_which_columns_is_drawn_and_told() -> None:
    owner = np.array([[0, 0, 1], [0, 0, -1], [-1, -1, 1], [0, 0, 1]])
    plot = pictures.holdings(owner, 2)
    assert plot.caption == "2 parties; 2 of 4 rows are held by all of them."
    shown = np.asarray(plot.draw().axes[0].images[0].get_array()) - 1
    assert shown.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, -1], [-1, -1, 1]]
    with pytest.raises(RecordError, match=r"parties 0\.\.1"):
        pictures.holdings(np.full((2, 2), 5), 2)
