"""What all tests share: a cache of their own, few threads, and no GPU tests where there is no GPU."""

import os
import signal
from html import escape
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from atoll.report.plots import Plot

# A busy machine draws slowly too, which says nothing of a test.
settings.register_profile("quick", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("quick"), max_examples=100)
settings.load_profile("quick")  # `make test-slow` asks for the other


@pytest.fixture(scope="session", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from or written to the user's cache (but for matplotlib's list of fonts, slow to make)."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    os.environ.setdefault("MPLCONFIGDIR", str(home / "matplotlib"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    torch.set_num_threads(1)


@pytest.fixture
def without_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has empty figures, for tests of what stands around them: matplotlib takes most of a page's time."""
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr(Plot, "svg", lambda plot: f'<svg role="img" aria-label="{escape(plot.alt)}"></svg>\n')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
