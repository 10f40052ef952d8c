"""Hospitals keep their names: from one file each to the record, the report and the pictures."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import atoll
from atoll import report
from atoll.cli.main import app
from atoll.data import DATA, PARTITIONS, Dataset, Partition, make_clients
from atoll.errors import DataError, PartitionError
from atoll.report import pictures

NAMES = ("Bern", "Charité <b>", "St. Mary")
KEY = torch.zeros(2, dtype=torch.int64)


@pytest.fixture
def sites(tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    for i, name in enumerate(NAMES):
        draw = np.random.default_rng(i)
        age, ill = draw.normal(50, 10, 12), draw.permutation([0, 1] * 6)
        rows = [f"{a:.1f},{y}" for a, y in zip(age, ill, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["age,ill", *rows]))
    return folder


def experiment(sites, **algorithm):
    data = {"name": "csv", "path": str(sites), "label": "ill"}
    return {"rounds": 2, "data": data, "algorithm": {"lr": 0.1, **algorithm}, "engine": "loop"}


def test_names_are_in_the_record_once_and_in_the_report_of_every_client(sites, tmp_path):
    runs = [atoll.run(experiment(sites, name=name), tmp_path / name) for name in ("fedavg", "local")]
    info = json.loads((runs[0].folder / "run.json").read_text("utf-8"))
    assert info["partition"]["names"] == list(NAMES)
    assert "Mary" not in (runs[0].folder / "record.jsonl").read_text("utf-8")
    page = report.write([run.folder for run in runs], tmp_path / "report.html").read_text("utf-8")
    section = page[page.index("Client by client") :]  # who is harmed, then everybody
    tables = re.findall(r"<table.*?</table>", section, re.DOTALL)
    table = next(t for t in tables if ">examples" in t and "Bern</th>" in t)
    assert [re.search(rf">{name}</th>", table) is not None for name in ("Bern", "St. Mary")] == [True, True]
    assert "Charité &lt;b&gt;</th>" in table
    assert "Charité <b>" not in page
    heads = [re.sub("<[^>]*>", "", head) for head in re.findall(r"<th [^>]*scope=.col.[^>]*>.*?</th>", table)[:5]]
    assert heads == ["client", "examples", "fedavg", "fedavg, gain", "local"]
    cells = re.search(r">Bern</th>(.*?)</tr>", table)[1]
    sizes, own, gain, alone = (float(v) for v in re.findall(r'data-value="([^"]*)"', cells))
    clients = [json.loads((run.folder / "clients.json").read_text("utf-8")) for run in runs]
    assert sizes == clients[0]["examples"][0]
    assert (own, alone) == tuple(100 * c["before"]["accuracy"][0] for c in clients)
    assert gain == pytest.approx(own - alone)


def test_names_follow_natural_clients_that_are_merged_dealt_or_dropped(sites):
    data = DATA["csv"](path=sites, label="ill")
    assert make_clients(data, PARTITIONS["natural"](), KEY).client_names == NAMES
    merged = make_clients(data, PARTITIONS["natural"](minimum=data.examples), KEY)
    assert merged.client_names == (" + ".join(NAMES),)
    dealt = make_clients(data, PARTITIONS["natural"](clients=2), KEY)
    for client, name in enumerate(dealt.client_names):
        members = data.keys["file"][dealt.of(client)].unique().tolist()
        assert name == " + ".join(NAMES[i] for i in members)
    assert make_clients(data, PARTITIONS["iid"](clients=2), KEY).client_names == ()


def test_names_change_no_digest_and_survive_a_split_and_a_file(tmp_path):
    plain = Partition.from_lists([[0, 1, 2], [3, 4]])
    named = replace(plain, client_names=("a", "b"))
    assert named.digest() == plain.digest()
    assert [part.client_names for part in named.split(0.5, KEY)] == [("a", "b")] * 2
    named.save(tmp_path / "p.npz")
    assert Partition.load(tmp_path / "p.npz").client_names == ("a", "b")
    with pytest.raises(PartitionError, match="client_names has 1 names for 2 clients"):
        replace(plain, client_names=("a",))
    data = Dataset.from_arrays([[0.0], [1.0]], [0, 1], keys={"site": [0, 1]})
    with pytest.raises(DataError, match=r"client_names\['site'\]: 1 names"):
        replace(data, client_names={"site": ("a",)}).check()


def test_a_picture_has_the_names_of_up_to_forty_clients():
    counts = np.ones((3, 2), np.int64)
    axis = pictures.bubbles(counts, clients=NAMES).draw().axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == list(NAMES)
    many = pictures.bubbles(np.ones((41, 2), np.int64), clients=[f"site {i}" for i in range(41)]).draw().axes[0]
    assert not any("site" in label.get_text() for label in many.get_xticklabels())


def test_data_show_says_who_the_clients_are(sites):
    options = ["--set", f"path={sites}", "--set", "label=ill", "--partition", "natural"]
    shown = CliRunner().invoke(app, ["data", "show", "csv", *options])
    text = " ".join(shown.output.replace("│", " ").split())
    assert "by file 3 clients" in text
    assert re.search(r"rows +Bern \d+, Charité <b> \d+, St\. Mary \d+", text), text


@pytest.mark.parametrize(
    "clients",
    [{"Bern": [0, 1], "Ulm": [2, 3]}, ["Bern", "Bern", "Ulm", "Ulm"], np.array(["Bern", "Bern", "Ulm", "Ulm"], object)],
)
def test_clients_that_a_program_names_keep_their_names(clients):
    x, y = np.arange(8, dtype="float32").reshape(4, 2), [0, 1, 0, 1]
    table = {"algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 1, "engine": "loop"}
    run = atoll.simulate(torch.nn.Linear(2, 2), (x, y), clients=clients, **table)
    assert run.info["partition"]["names"] == ["Bern", "Ulm"]
