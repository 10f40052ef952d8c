"""The suite on models of one's own."""

from atoll.experiment import Experiment
from tests.suites.test_shipped import places, suite


def test_it_compares_eight_personal_methods_and_the_yardstick_on_three_partitions() -> None:
    methods = {p.path["method"] for p in places("personal")}
    assert {"local", "fedavg"} < methods
    assert len(methods - {"local", "fedavg"}) >= 8
    assert len({p.path["partition"] for p in places("personal")}) == 3


def test_clients_are_measured_on_what_they_never_trained_on_after_they_trained() -> None:
    assert suite("personal")["metric"] == "after.accuracy.mean"
    for place in places("personal"):
        evaluate = Experiment.parse(place.base).evaluate
        assert evaluate.after
        assert evaluate.holdout == 0.25


def test_one_rate_for_all() -> None:
    assert {Experiment.parse(p.base).algorithm["lr"] for p in places("personal")} == {0.1}
