import numpy as np
import pytest

from atoll.errors import RecordError
from atoll.report import LeakagePoint, leakage_plot, reconstructions

IMAGES = np.random.default_rng(0).uniform(0, 1, (20, 1, 8, 8))


def test_originals_stand_above_their_reconstructions() -> None:
    found = np.zeros_like(IMAGES)
    figure = reconstructions(IMAGES, found).draw()
    mosaic = np.asarray(figure.axes[0].images[0].get_array())
    assert mosaic[:8, 9:17] == pytest.approx(IMAGES[1, 0])
    assert (mosaic[9:17, 9:17] == 0).all()
    assert mosaic[19:27, :8] == pytest.approx(IMAGES[16, 0])  # the second row of originals


def test_colours_are_shown_as_such() -> None:
    colour = np.repeat(IMAGES, 3, 1)
    assert np.asarray(reconstructions(colour, colour).draw().axes[0].images[0].get_array()).shape[-1] == 3
    with pytest.raises(RecordError, match=r"images of shape \(20, 1, 8, 8\) and \(3, 1, 8, 8\)"):
        reconstructions(IMAGES, IMAGES[:3])


def test_every_defence_is_a_point_with_its_interval() -> None:
    points = [LeakagePoint("none", 0.9, (0.8, 0.95), 0.8), LeakagePoint("noise", 0.1, (0.0, 0.2), 0.6)]
    plot = leakage_plot(points, "share identified", "accuracy")
    axes = plot.draw().axes[0]
    assert [tuple(map(float, line.get_xydata()[0])) for line in axes.lines[:2]] == [(0.9, 0.8), (0.1, 0.6)]
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    assert "'none' (0.90)" in plot.alt
