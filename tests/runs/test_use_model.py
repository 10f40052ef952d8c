"""After training: the model, its predictions, clients' own models, weights in files, and a start from them."""

import csv
import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import nn
from typer.testing import CliRunner

import atoll
from atoll.cli.main import app
from atoll.data import DATA
from atoll.errors import ConfigError, DataError, RecordError
from atoll.runs import Run

NAMES = ("Bern", "St. Mary", "Ulm")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "sites"
    folder.mkdir()
    for i, name in enumerate(NAMES):
        draw = np.random.default_rng(i)
        age, job, ill = draw.normal(50 + i, 10, 30), draw.choice(["cook", "clerk"], 30), draw.permutation([0, 1] * 15)
        rows = [f"{a:.1f};{j};{'yes' if y else 'no'}" for a, j, y in zip(age, job, ill, strict=True)]
        rows[0] = f";{rows[0].partition(';')[2]}"
        (folder / f"{name}.csv").write_text("\n".join(["age;job;ill", *rows]).replace(".", ","))
    return folder


def experiment(sites, **changes):
    data = {"name": "csv", "path": str(sites), "label": "ill", "decimal": ",", "missing": "mean"}
    return {"rounds": 3, "data": data, "algorithm": {"name": "fedavg", "lr": 0.3}, "engine": "loop", **changes}


def loaded(sites):
    return DATA["csv"](path=sites, label="ill", decimal=",", missing="mean")


@pytest.fixture(scope="module")
def run(sites, tmp_path_factory):
    return atoll.run(experiment(sites), tmp_path_factory.mktemp("runs") / "fedavg")


def test_new_rows_are_prepared_to_the_last_bit_as_the_training_rows_were(run, sites):
    data = loaded(sites)
    hits = run.model()(data.decode(data.test)["x"]).argmax(1) == data.test["y"]
    assert float(hits.double().mean()) == pytest.approx(run.final["accuracy"])
    x = np.concatenate([data.decode(part)["x"].numpy() for part in (data.train, data.test)])
    prepared = run.inputs.decoded(_raw_rows(sites), {}).numpy()
    assert sorted(map(tuple, prepared.tolist())) == sorted(map(tuple, x.tolist()))


def _raw_rows(sites):
    rows = [row for path in sorted(sites.glob("*.csv")) for row in _lines(path, ";")]
    ages = [float(row["age"].replace(",", ".")) if row["age"] else np.nan for row in rows]
    return {"age": ages, "job": [row["job"] for row in rows]}


def _lines(path, delimiter=","):
    with path.open() as stream:
        return list(csv.DictReader(stream, delimiter=delimiter))


def test_a_file_a_table_and_the_command_say_the_same(run, sites, tmp_path):
    by_file = run.predict(sites / "Bern.csv")
    rows = {name: values[:30] for name, values in _raw_rows(sites).items()}
    assert set(by_file) <= {"yes", "no"}
    assert run.predict(rows).tolist() == by_file.tolist()
    shares = run.predict(rows, probabilities=True)
    assert np.array(["no", "yes"])[shares.argmax(1)].tolist() == by_file.tolist()
    done = CliRunner().invoke(app, ["predict", str(run.folder), str(sites / "Bern.csv"), "-o", str(tmp_path / "o.csv")])
    assert done.exit_code == 0, done.output
    lines = _lines(tmp_path / "o.csv")
    assert [line["prediction"] for line in lines] == by_file.tolist()
    assert float(lines[0]["p(yes)"]) == pytest.approx(shares[0, 1], rel=1e-5)


def test_only_the_folder_is_needed(run, sites):
    info = json.loads((run.folder / "preprocessing.json").read_text())
    assert info["columns"]["categories"] == [{"name": "job", "values": ["clerk", "cook"]}]
    assert Run(run.folder).predict(sites / "Ulm.csv").tolist() == run.predict(sites / "Ulm.csv").tolist()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"age": [1.0]}, "x: lacks 'job'"),
        (np.zeros((2, 3)), r"an array of shape \(2, 3\) does not name its columns\. Give a table.*'age', 'job'"),
        ("nowhere.csv", "there is no file nowhere.csv"),
    ],
)
def test_rows_that_do_not_fit_are_refused(x, message, run):
    with pytest.raises(DataError, match=message):
        run.predict(x)


def test_a_category_that_nobody_had_is_none_and_text_is_no_number(run, tmp_path):
    (tmp_path / "new.csv").write_text("job;age\npilot;40,5\n")
    assert len(run.predict(tmp_path / "new.csv")) == 1
    (tmp_path / "new.csv").write_text("job;age\npilot;old\n")
    with pytest.raises(DataError, match="column 'age' is no number everywhere; in training it was"):
        run.predict(tmp_path / "new.csv")


def test_a_missing_value_is_refused_where_training_had_none(sites, tmp_path):
    (tmp_path / "t.csv").write_text("a,u,y\n" + "".join(f"{i},{i % 2},{i // 4}\n" for i in range(8)))
    data = {"name": "csv", "path": str(tmp_path / "t.csv"), "label": "y", "client": "u", "test_share": 0.0}
    done = atoll.run(experiment(sites, data=data, rounds=1), tmp_path / "run")
    with pytest.raises(DataError, match=r"column 'a' has 1 numbers that are missing or not finite, the first in row 2"):
        done.predict({"a": [1.0, float("nan")]})
    assert done.predict(np.array([[1.0], [7.0]])).shape == (2,)


def test_a_regression_answers_in_the_scale_of_the_file(tmp_path):
    rows = "".join(f"{i},{i % 2},{1000 + 10 * i + 0.5}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("a,u,y\n" + rows)
    data = {"name": "csv", "path": str(tmp_path / "t.csv"), "label": "y", "client": "u", "standardise": "all"}
    table = {"rounds": 60, "data": data, "algorithm": {"name": "fedavg", "lr": 0.3}, "engine": "loop"}
    said = atoll.run(table, tmp_path / "run").predict({"a": [5.0, 30.0]})
    assert said == pytest.approx([1050.5, 1300.5], abs=5)
    shown = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(tmp_path / "t.csv")])
    assert shown.output.splitlines()[0] == "prediction"
    assert len(shown.output.splitlines()) == 41


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ditto", {}),
        ("fedper", {"transform": [{"name": "top_k", "share": 0.5}]}),  # which keeps something with clients, too
        ("local", {"evaluate": {"every": 3}}),
        ("fedavg", {"round": "gossip"}),
        ("local", {"task": {"loss": {"name": "cross_entropy", "weight": "balanced"}}}),
    ],
)
def test_a_client_predicts_with_its_own_model(name, more, sites, tmp_path):
    done = atoll.run(experiment(sites, algorithm={"name": name, "lr": 0.3}, **more), tmp_path / name)
    data, measured = loaded(sites), json.loads((done.folder / "clients.json").read_text())["before"]
    for number, client in enumerate(NAMES):
        rows = (data.keys["file"] == number).nonzero()[:, 0]
        x, y = data.decode(data.train)["x"][rows], data.train["y"][rows]
        for asked in (client, number, str(number)):
            scores = done.model(client=asked)(x).softmax(1)[:, 1].detach()
            assert roc_auc_score(y, scores) == pytest.approx(measured["auroc"][number])
    assert len(set(measured["auroc"])) > 1
    shown = CliRunner().invoke(app, ["predict", str(done.folder), str(sites / "Ulm.csv"), "--client", "Ulm"])
    said = [line.partition(",")[0] for line in shown.output.splitlines()[1:]]
    assert said == done.predict(sites / "Ulm.csv", client="Ulm").tolist()
    with pytest.raises(ConfigError, match=r"there is no 'St Mary'\. Did you mean 'St\. Mary'\?"):
        done.model(client="St Mary")


def test_who_has_no_model_of_its_own_is_said(run, sites, tmp_path):
    with pytest.raises(ConfigError, match="with fedavg clients have no models of their own"):
        run.model(client="Ulm")
    partial = atoll.run(experiment(sites, algorithm={"name": "fedper", "lr": 0.1}, rounds=1), tmp_path / "p")
    with pytest.raises(ConfigError, match=r"with fedper the server's model is not whole.* Name a client"):
        partial.model()


@pytest.mark.parametrize("batch_norm", ["average", "group"])
def test_a_module_from_python_comes_back_and_from_its_folder_needs_one_like_it(batch_norm, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    clients = [np.arange(20), np.arange(20, 40)]
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    table = {"task": {"batch_norm": batch_norm}, "rounds": 2, "engine": "loop", "out": tmp_path / "run"}
    done = atoll.simulate(net, (x, y), (x, y), clients=clients, algorithm={"name": "fedavg", "lr": 0.1}, **table)
    assert float((done.predict(x) == y).mean()) == pytest.approx(done.final["accuracy"])
    assert all(torch.equal(v, done.params[k]) for k, v in done.model().state_dict().items())
    with pytest.raises(ConfigError, match=r"Sequential was given from Python.*run\.model\(module="):
        Run(done.folder).predict(x)
    assert Run(done.folder).predict(x, module=net).tolist() == done.predict(x).tolist()
    with pytest.raises(DataError, match=r"rows have shape \(2,\), and the model takes \(3,\)"):
        done.predict(x[:, :2])


def frame():
    draw = np.random.default_rng(1)
    ward = pd.Series(draw.choice(["north", "south", "west"], 60), dtype="category")
    return pd.DataFrame({"ward": ward, "age": draw.normal(size=60), "sex": draw.choice(["f", "m"], 60)})


def net():
    return nn.Linear(6, 2)


def of_frame(x, out, **more):
    y, halves = np.arange(len(x)) % 2, [np.arange(0, len(x), 2), np.arange(1, len(x), 2)]
    table = {"clients": halves, "algorithm": {"name": "fedavg", "lr": 0.3}, "rounds": 3, "engine": "loop", "out": out}
    return atoll.simulate(net, (x, y), (x, y), **table, **more)


def test_after_training_on_a_frame_a_frame_a_dict_a_file_and_the_command_say_the_same(tmp_path, monkeypatch):
    x = frame()
    hot = [x["ward"] == "north", x["ward"] == "south", x["ward"] == "west", x["age"], x["sex"] == "f", x["sex"] == "m"]
    rows = torch.from_numpy(np.stack(hot, 1).astype("float32"))
    done = of_frame(x, tmp_path / "run")
    shares = done.predict(x, probabilities=True)
    assert shares.tolist() == done.model()(rows).double().softmax(1).tolist()
    assert done.predict(x[["sex", "age", "ward"]], probabilities=True).tolist() == shares.tolist()
    assert done.predict(dict(x.astype(object)), probabilities=True).tolist() == shares.tolist()
    x.to_csv(tmp_path / "new.csv", index=False)
    assert done.predict(tmp_path / "new.csv", probabilities=True).tolist() == shares.tolist()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_nets.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(6, 2)\n")
    command = ["predict", str(done.folder), str(tmp_path / "new.csv")]
    shown = CliRunner().invoke(app, [*command, "--module", "my_nets:net"])
    assert [line.partition(",")[0] for line in shown.output.splitlines()[1:]] == [str(a) for a in done.predict(x)]
    with pytest.raises(ConfigError, match=r"name its class: atoll predict --module my_nets:Linear"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_numbered_columns_and_what_is_missing_in_a_frame(tmp_path):
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 6)))  # its columns are called 0 to 5
    assert of_frame(x, tmp_path / "a").predict(x).tolist() == of_frame(x, tmp_path / "b").predict(x.to_numpy()).tolist()
    gaps = frame().assign(sex=pd.Series(["f", "m", None] * 20, dtype="string"))
    done = of_frame(gaps, tmp_path / "c")
    assert done.inputs.columns.categories[1].values == ("f", "m")
    assert done.inputs.decoded(gaps, {})[2, 4:].tolist() == [0, 0]
    with pytest.raises(DataError, match=r"x: column 'age' is no number everywhere; in training it was"):
        done.predict(gaps.assign(age="old"))


def test_categories_of_a_frame_are_of_its_rows_so_that_a_private_run_is_refused(tmp_path):
    chain = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 1.0}]
    with pytest.raises(ConfigError, match="categories"):
        of_frame(frame(), tmp_path / "run", transforms=chain, privacy={"delta": 1e-3})


def test_a_run_by_secure_aggregation_gives_its_model(sites, tmp_path):
    clipped = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
    done = atoll.run(experiment(sites, transform=clipped, secure={"protocol": "secagg"}), tmp_path / "run")
    assert all(torch.equal(v, done.params[k]) for k, v in done.model().state_dict().items())


def test_the_best_model_is_used_where_it_is_asked_for(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 6)).astype("float32"), draw.integers(0, 2, 40)
    halves = [np.arange(20), np.arange(20, 40)]
    table = {"clients": halves, "algorithm": {"name": "fedavg", "lr": 3.0}, "rounds": 6, "engine": "loop"}
    done = atoll.simulate(net, (x, y), (x, y), **table, out=tmp_path / "run")
    assert done.best["round"] < 6
    assert all(torch.equal(v, done.best_params[k]) for k, v in done.model(best=True).state_dict().items())
    hits = (done.predict(x, best=True) == y).mean()
    assert float(hits) == pytest.approx(done.history[done.best["round"] - 1]["accuracy"])
    assert float(hits) > float((done.predict(x) == y).mean())
    saved = torch.load(done.export(tmp_path / "best.pt", best=True), weights_only=True)
    assert all(torch.equal(v, done.best_params[k]) for k, v in saved.items())


def test_the_command_takes_the_best_model_and_who_has_none_is_told(sites, tmp_path):
    done = atoll.run(experiment(sites, algorithm={"name": "fedavg", "lr": 5.0}, rounds=5), tmp_path / "run")
    assert done.best["round"] < 5
    shown = CliRunner().invoke(app, ["predict", str(done.folder), str(sites / "Ulm.csv"), "--best"])
    said = [float(line.rpartition(",")[2]) for line in shown.output.splitlines()[1:]]
    assert said == pytest.approx(done.predict(sites / "Ulm.csv", probabilities=True, best=True)[:, 1], rel=1e-5)
    assert said != pytest.approx(done.predict(sites / "Ulm.csv", probabilities=True)[:, 1], rel=1e-5)
    with pytest.raises(ConfigError, match="best: is the server's model; clients' own are those of the last round"):
        done.model(client="Ulm", best=True)
    del done.info["best"]
    with pytest.raises(ConfigError, match="best: this run kept no best model"):
        done.predict(sites / "Ulm.csv", best=True)


def test_pixels_are_prepared_as_in_training():
    x = np.random.default_rng(0).integers(0, 256, (40, 5, 5, 3)).astype("uint8")
    net = nn.Sequential(nn.Flatten(), nn.Linear(75, 2))
    table = {"algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 1, "engine": "loop"}
    done = atoll.simulate(net, (x, np.arange(40) % 2), clients={"name": "iid", "clients": 2}, **table)
    whole = torch.from_numpy(x).permute(0, 3, 1, 2).float() * (1.0 / 255.0)
    shares = done.model()(whole).softmax(1).tolist()
    assert done.predict(x, probabilities=True) == pytest.approx(np.array(shares), rel=1e-5)


class Pair(nn.Module):
    """Takes two inputs by name."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 2)

    def forward(self, left, right):
        return {"logits": self.last(torch.cat([left, right], 1))}


def test_a_model_with_named_inputs_predicts_by_name():
    draw = np.random.default_rng(0)
    x = {"left": draw.normal(size=(20, 2)).astype("float32"), "right": draw.normal(size=(20, 3)).astype("float32")}
    y, table = np.arange(20) % 2, {"algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 1, "engine": "loop"}
    done = atoll.simulate(Pair(), (x, y), (x, y), clients=[np.arange(10), np.arange(10, 20)], **table)
    assert float((done.predict(x) == y).mean()) == pytest.approx(done.final["accuracy"])
    with pytest.raises(DataError, match="Give a dict with 'left', 'right'"):
        done.predict(x["left"])


def test_weights_go_to_a_file_and_training_starts_from_it(run, sites, tmp_path):
    path = run.export(tmp_path / "model.pt")
    still = {"name": "fedavg", "lr": 1e-30}  # so that a round leaves the weights where they are
    for start in (path, run.folder):
        table = experiment(sites, task={"start": str(start)}, rounds=1, algorithm=still)
        params = atoll.run(table, tmp_path / f"from {start.name}").params
        assert all(torch.equal(v, params[k]) for k, v in run.params.items())
    with pytest.raises(RecordError, match=r"weights are written as \.pt or \.safetensors"):
        run.export(tmp_path / "model.onnx")


def test_a_start_leaves_the_module_of_a_program_as_it_is(tmp_path):
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    before = net.weight.detach().clone()
    x, table = np.ones((4, 3), "float32"), {"algorithm": {"name": "fedavg", "lr": 1e-30}, "rounds": 1}
    start = {"start": str(tmp_path / "other.pt")}
    done = atoll.simulate(net, (x, [0, 1, 0, 1]), clients=[[0, 1], [2, 3]], task=start, engine="loop", **table)
    assert torch.equal(done.params["weight"], other.weight)
    assert torch.equal(net.weight, before)


def test_a_start_that_does_not_fit_is_refused_with_names_and_shapes(run, sites, tmp_path):
    state = dict(run.params)
    name = next(iter(state))
    for changed, message in (
        ({**state, name: torch.zeros(3, 3)}, rf"'{name}' has shape \(3, 3\), here \(\d+, \d+\)"),
        ({k: v for k, v in state.items() if k != name}, f"it lacks '{name}'"),
        ({**state, "extra": torch.zeros(1)}, "it has 'extra', which task.model has not"),
        ([1], "holds no state_dict"),
    ):
        torch.save(changed, tmp_path / "other.pt")
        with pytest.raises(ConfigError, match=f"task.start: .*{message}"):
            atoll.run(experiment(sites, task={"start": str(tmp_path / "other.pt")}), tmp_path / "never")
    (tmp_path / "other.pt").write_bytes(b"no weights")
    for start, message in (("other.pt", "cannot be read as weights"), ("none.pt", "there is no file")):
        with pytest.raises(ConfigError, match=message):
            atoll.run(experiment(sites, task={"start": str(tmp_path / start)}), tmp_path / "never")


def test_safetensors_are_written_by_their_package_or_refused_with_what_to_install(run, tmp_path, monkeypatch):
    run.export(tmp_path / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[k], v) for k, v in run.params.items())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "safetensors.torch")
    with pytest.raises(ConfigError, match=r"pip install 'atoll\[safetensors\]', or use a \.pt file"):
        run.export(tmp_path / "model.safetensors")


def test_a_run_can_start_from_safetensors(run, sites, tmp_path):
    starts = [run.export(tmp_path / f"model.{kind}") for kind in ("safetensors", "pt")]
    a, b = (atoll.run(experiment(sites, task={"start": str(path)}), tmp_path / path.suffix) for path in starts)
    assert all(torch.equal(a.params[k], b.params[k]) for k in run.params)
    assert not torch.equal(a.params[next(iter(run.params))], run.params[next(iter(run.params))])
