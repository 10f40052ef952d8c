"""The report room: records in, tables and pages out. Every test writes its own small run folders."""

import doctest
import html
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import atoll
from atoll import report
from atoll.errors import RecordError
from atoll.records import read_runs
from atoll.records.run_record import find
from atoll.report import metrics, notes, prose, render, settings, text_table
from atoll.report.estimates import curve, interval, seconds
from atoll.report.final_table import Column, final
from atoll.report.gains import gain
from atoll.report.metrics import ACCURACY, PREFERRED, primary
from atoll.report.plots import plots
from atoll.report.prose import significant
from atoll.report.seed_groups import group
from tests.support.page_parser import Loads

pytestmark = pytest.mark.usefixtures("without_figures")
MSE = next(metric for metric in PREFERRED if metric.key == "mse")


def write_run(
    root: Path,
    *,
    label: str = "fedavg",
    seed: int = 0,
    algorithm: Mapping[str, Any] | None = None,
    values: Sequence[float | None] = (0.2, 0.5, 0.6),
    clients: Sequence[float] | None = (0.4, 0.5, 0.6),
    after: Sequence[float] | None = None,
    metric: str = "accuracy",
    split: str = "aa",
    asked: int | None = None,
    **experiment: Any,
) -> Path:
    """A run folder; a value of None is a round without evaluation."""
    folder = root / f"run-{len(list(root.iterdir())) if root.exists() else 0}"
    folder.mkdir(parents=True)
    table = {"name": label, **(algorithm or {})}
    config = {
        "rounds": asked or len(values),
        "seed": seed,
        "data": {"name": "digits"},
        "algorithm": table,
        **experiment,
    }
    run = {
        "format": 1,
        "atoll": "0.1.0",
        "label": label,
        "experiment": config,
        "digest": f"d{seed}",
        "seed": seed,
        "partition": {"digest": split, "clients": 3},
        "status": "finished",
        "engine": {"name": "vector"},
        "versions": {"torch": "2.10"},
        "hardware": {"device": "cpu", "gpu": None},
    }
    (folder / "run.json").write_text(json.dumps(run))
    lines = [line_of(number, value, metric, clients, after) for number, value in enumerate(values, start=1)]
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if clients is not None:
        look = {"round": len(values), "ids": list(range(len(clients))), "examples": [5] * len(clients), "on": "holdout"}
        look |= {"before": {metric: list(clients)}, "after": {metric: list(after)} if after else None}
        (folder / "clients.json").write_text(json.dumps(look))
    return folder


def line_of(number: int, value: float | None, metric: str, clients: Any, after: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"round": number, "train_loss": 2.0 / number}
    if value is not None:
        line |= {metric: value, "loss": 1.0 / number}
        line |= {name: {metric: spread(part)} for name, part in (("clients", clients), ("after", after)) if part}
    phases = {"sample": 0.1, "train": 0.5, "server": 0.1} | ({"evaluate": 0.4} if value is not None else {})
    return line | {"seconds": phases, "bytes": {"up": 1_000_000, "down": 3_000_000}, "model": f"m{number}"}


def spread(values: Sequence[float]) -> dict[str, float]:
    array = np.array(values)
    return {"mean": array.mean(), "std": array.std(), "worst_decile": array.min(), "gini": 0.1}


def page_of(folders: Sequence[Path], tmp_path: Path) -> str:
    return report.write(folders, tmp_path / "out" / "report.html").read_text("utf-8")


def printed(folders: Sequence[Path]) -> str:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(report.summary(folders))
    return capture.get()


def test_an_interval_is_that_of_student_worked_by_hand() -> None:
    values = [0.80, 0.84, 0.85, 0.91]
    found = interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert found is not None
    assert found.mean == pytest.approx(0.85)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert interval([1.0, 2.0]).half == pytest.approx(12.7062047 * 0.5)  # t(0.975, 1) s / sqrt(2)


def test_one_value_has_no_interval_and_no_value_no_estimate() -> None:
    assert interval([0.7]).half is None
    assert interval([]) is None


def test_a_seed_that_diverged_is_not_dropped(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=0), write_run(tmp_path, seed=1, values=(0.2, math.nan, math.nan))]
    assert math.isnan(curve(group(read_runs(folders))[0], "accuracy").last.mean)
    assert "diverged" in page_of(folders, tmp_path)
    assert "diverged" in printed(folders)


def test_runs_that_differ_only_in_seed_are_one_group(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=seed) for seed in (2, 0, 1)] + [write_run(tmp_path, label="scaffold")]
    groups = group(read_runs(folders))
    assert [(one.name, one.seeds) for one in groups] == [("fedavg", [0, 1, 2]), ("scaffold", [0])]


def test_a_seed_run_twice_counts_once_and_the_report_says_so(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, values=(0.2, 0.3)), write_run(tmp_path, values=(0.2, 0.3, 0.4), asked=2)]
    groups = group(read_runs(folders))
    assert [record.folder for record in groups[0].records] == [folders[1]]
    assert "another folder holds the same experiment with seed 0" in page_of(folders, tmp_path)


def test_a_folder_given_twice_is_read_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert len(read_runs([folder, tmp_path / "." / folder.name])) == 1


def test_names_carry_the_settings_that_differ_and_no_others(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path, label="fedavg", algorithm={"lr": 0.1}),
        write_run(tmp_path, label="fedprox", algorithm={"lr": 0.1, "mu": 0.01}),
        write_run(tmp_path, label="fedprox", algorithm={"lr": 0.1, "mu": 0.1}),
    ]
    assert [one.name for one in group(read_runs(folders))] == ["fedavg", "fedprox mu=0.01", "fedprox mu=0.1"]


def test_under_one_label_the_kind_is_named_and_not_what_follows_from_it(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path, label="mine", partition={"name": "iid"}),
        write_run(tmp_path, label="mine", partition={"name": "dirichlet", "alpha": 0.3}),
    ]
    assert [one.name for one in group(read_runs(folders))] == ["mine partition=iid", "mine partition=dirichlet"]


def test_names_tell_transforms_apart(tmp_path: Path) -> None:
    clip, noise = {"name": "clip_l2", "max_norm": 1.0}, {"name": "noise", "std": 0.5}
    chains = ([], [clip], [clip, noise], [clip, {**noise, "std": 0.7}])
    names = [one.name for one in group(read_runs([write_run(tmp_path, transform=chain) for chain in chains]))]
    assert names == [
        "fedavg transform=none",
        "fedavg transform=clip_l2",
        "fedavg transform=clip_l2 > noise std=0.5",
        "fedavg transform=clip_l2 > noise std=0.7",
    ]


def test_words_that_two_tables_share_are_written_out() -> None:
    assert settings.short(["algorithm.lr", "local.lr", "partition.name"]) == {
        "algorithm.lr": "algorithm.lr",
        "local.lr": "local.lr",
        "partition.name": "partition",
    }


def test_gain_over_training_alone_by_hand(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path, label="fedavg", seed=0, clients=(0.5, 0.7, 0.9), after=(0.9, 0.9, 0.9)),
        write_run(tmp_path, label="local", seed=0, clients=(0.6, 0.6, 0.6)),
        write_run(tmp_path, label="fedavg", seed=1, clients=(0.7, 0.7, 0.7), after=(0.9, 0.9, 0.9)),
        write_run(tmp_path, label="local", seed=1, clients=(0.6, 0.5, 0.4)),
    ]
    groups = group(read_runs(folders))
    found = gain(groups[0], groups, ACCURACY)
    assert found is not None
    assert found.mean.mean == pytest.approx((0.1 + 0.2) / 2)
    assert found.mean.half == pytest.approx(12.7062047 * 0.05)
    assert found.share.mean == pytest.approx((2 / 3 + 1) / 2)
    tuned = gain(groups[0], groups, ACCURACY, "after")
    assert tuned is not None
    assert tuned.mean.mean == pytest.approx((0.3 + 0.4) / 2)
    assert gain(groups[1], groups, ACCURACY) is None  # the yardstick itself


def test_where_lower_is_better_a_gain_is_still_positive(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path, label="fedavg", metric="mse", clients=(1.0, 2.0, 3.0)),
        write_run(tmp_path, label="local", metric="mse", clients=(2.0, 2.0, 5.0)),
    ]
    records = read_runs(folders)
    groups = group(records)
    assert primary(records) == MSE
    assert gain(groups[0], groups, MSE).mean.mean == pytest.approx(1.0)
    assert gain(groups[0], groups, MSE).share.mean == pytest.approx(2 / 3)


@pytest.mark.parametrize("other", [{"split": "bb"}, {"seed": 1}])
def test_another_split_or_seed_is_no_yardstick(tmp_path: Path, other: dict[str, Any]) -> None:
    folders = [write_run(tmp_path), write_run(tmp_path, label="local", **other)]
    groups = group(read_runs(folders))
    assert gain(groups[0], groups, ACCURACY) is None


def test_the_strongest_local_run_is_the_yardstick(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path, clients=(0.6, 0.6, 0.6)),
        write_run(tmp_path, label="local", clients=(0.1, 0.1, 0.1), algorithm={"lr": 1.0}),
        write_run(tmp_path, label="local", clients=(0.5, 0.5, 0.5), algorithm={"lr": 0.1}),
    ]
    groups = group(read_runs(folders))
    assert gain(groups[0], groups, ACCURACY).mean.mean == pytest.approx(0.1)


def test_without_a_local_run_the_report_says_how_to_get_a_gain(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    records = read_runs([folder])
    table = final(group(records), ACCURACY)
    assert "gain" not in [column.key for column in table.columns]
    assert "algorithm.name = &#34;local&#34;" in page_of([folder], tmp_path)
    assert 'algorithm.name = "local"' in " ".join(printed([folder]).split())


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    with (folder / "record.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "accuracy": 0.9, "l\xc3')
    assert [line["round"] for line in read_runs([folder])[0].rounds] == [1, 2, 3]
    assert report.table([folder]).aggregate("count(*), max(round)").fetchall() == [(3, 3)]


def test_a_line_broken_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    path = folder / "record.jsonl"
    path.write_text(path.read_text().replace('{"round": 2', '{"rou', 1))
    with pytest.raises(RecordError, match=r"record\.jsonl, line 2: is not round 2.*run the experiment again"):
        read_runs([folder])


def test_after_a_resume_the_later_line_of_a_round_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    with (folder / "record.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "accuracy": 0.75}) + "\n")
    assert read_runs([folder])[0].series("accuracy").values.tolist() == [0.2, 0.5, 0.75]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "run.json").unlink(), r"is not a run \(it has no run.json\)\. Name the folder"),
        (lambda f: (f / "run.json").write_text("{"), r"run\.json: cannot be read .*Run the experiment again"),
        (lambda f: (f / "run.json").write_text("[]"), r"run\.json: holds no table"),
        (lambda f: (f / "run.json").write_text('{"format": 2}'), r"has format 2; this version of atoll reads format 1"),
        (lambda f: (f / "run.json").write_text('{"format": 1}'), r"lacks label, digest, seed, status, engine, exp"),
        (lambda f: (f / "record.jsonl").unlink(), r"record\.jsonl: holds no complete round yet\. Wait"),
        (lambda f: (f / "record.jsonl").write_text(""), r"holds no complete round yet\. Wait"),
        (lambda f: (f / "clients.json").write_text("{}"), r"clients\.json: is not a look at the clients"),
        (
            lambda f: (f / "clients.json").write_text('{"round":1,"ids":[1],"on":"x","before":{"loss":[1,2]}}'),
            r"loss does not hold one value for each of 1 clients",
        ),
    ],
)
def test_a_corrupt_folder_is_refused_with_where_what_and_what_instead(tmp_path: Path, spoil: Any, message: str) -> None:
    folder = write_run(tmp_path)
    spoil(folder)
    with pytest.raises(RecordError, match=message) as caught:
        read_runs([folder])
    assert str(folder) in str(caught.value)


def test_a_folder_of_runs_is_pointed_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(RecordError, match="holds 1 runs below it"):
        read_runs([tmp_path])


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(RecordError, match="no run folder was given"):
        read_runs([])


def test_many_folders_are_one_relation(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=seed, values=(0.1, None, 0.5 + seed / 10)) for seed in (0, 1)]
    best = report.table(folders).aggregate("label, seed, max(accuracy) as best", "label, seed").order("seed")
    assert best.fetchall() == [("fedavg", 0, 0.5), ("fedavg", 1, 0.6)]
    assert report.table(folders).filter("round = 2").fetchall()[0][0] == str(folders[0])


def test_rounds_without_evaluation_are_no_gaps(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=seed, values=(None, 0.4, None, 0.6 + seed / 10, None)) for seed in (0, 1)]
    only = group(read_runs(folders))[0]
    found = curve(only, "accuracy")
    assert found.rounds.tolist() == [2, 4]
    assert found.last.mean == pytest.approx(0.65)
    assert seconds(only, "evaluate").mean == pytest.approx(0.4 * 2 / 5)
    assert seconds(only).mean == pytest.approx(0.7 + 0.4 * 2 / 5)
    assert "65.00" in page_of(folders, tmp_path)


def test_seeds_of_unequal_length_are_compared_where_both_were(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, values=(0.1, 0.2, 0.9)), write_run(tmp_path, seed=1, values=(0.1, 0.4), asked=3)]
    only = group(read_runs(folders))[0]
    assert curve(only, "accuracy").last.mean == pytest.approx(0.3)
    assert "seed 1: stopped at round 2 of 3" in page_of(folders, tmp_path)


def test_the_final_table_holds_what_was_recorded(tmp_path: Path) -> None:
    folder = write_run(tmp_path, values=(0.2, 0.7, 0.6))
    table = final(group(read_runs([folder])), ACCURACY)
    shown = {column.key: column.cell(table.rows[0].cells[column.key]).text for column in table.columns}
    assert shown == {
        "last": "60.00",
        "best": "70.00",
        "mean": "50.00",
        "worst": "40.00",
        "std": "8.16",
        "gini": "0.100",
        "up": "1.00",
        "down": "3.00",
        "seconds": "1.10",
    }


def test_where_lower_is_better_the_best_round_is_the_lowest(tmp_path: Path) -> None:
    folder = write_run(tmp_path, metric="mse", values=(3.0, 1.0, 2.0))
    table = final(group(read_runs([folder])), MSE)
    assert table.rows[0].cells["best"].mean == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "auroc", "perplexity", "mse", "mae", "loss"])
def test_the_primary_metric_is_the_first_one_recorded(tmp_path: Path, metric: str) -> None:
    assert primary(read_runs([write_run(tmp_path, metric=metric)])).key == metric


def test_the_primary_metric_is_one_that_all_runs_have(tmp_path: Path) -> None:
    folders = [write_run(tmp_path), write_run(tmp_path, label="other", metric="mae")]
    assert primary(read_runs(folders)).key == "loss"


@pytest.mark.figures
def test_a_single_seed_says_so_in_words(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    text = page_of([folder], tmp_path)
    assert text.count("1 seed, no interval") >= 3  # the notes, the scope and every legend
    assert "Shaded" not in text
    assert "1 seed, no interval: fedavg." in printed([folder])


@pytest.mark.figures
def test_several_seeds_do_not_say_it(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=seed, values=(0.5, 0.6 + seed / 10)) for seed in (0, 1)]
    text = page_of(folders, tmp_path)
    assert "no interval" not in text
    assert "Shaded: 95 % t interval over seeds." in text
    assert "± 63.53" in text  # 12.706 * 0.05, in percent


def test_the_lead_says_when_intervals_overlap(tmp_path: Path) -> None:
    near = [write_run(tmp_path, seed=s, values=(0.50 + s / 100,)) for s in (0, 1, 2)]
    high = [write_run(tmp_path, label="high", seed=s, values=(0.52 + s / 100,)) for s in (0, 1, 2)]
    far = [write_run(tmp_path, label="far", seed=s, values=(0.90 + s / 100,)) for s in (0, 1, 2)]
    close = notes.lead(final(group(read_runs(near + high)), ACCURACY))
    assert "high, 53.00 ± 2.48 %. Its interval overlaps that of fedavg" in close
    clear = notes.lead(final(group(read_runs(near + far)), ACCURACY))
    assert "Its interval overlaps no other." in clear


@pytest.mark.figures
def test_the_page_loads_nothing_and_its_ids_are_its_own(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, label=label, seed=seed) for label in ("fedavg", "local") for seed in (0, 1)]
    text = page_of(folders, tmp_path)
    page = Loads()
    page.feed(text)
    assert "svg" in page.tags
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert page.tags.count("script") == 1  # our own few lines, that sort a table
    assert all(address.startswith("#") for address in page.fetched)
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text
    assert not re.search(r"https?://", text)
    assert len(page.ids) == len(set(page.ids))
    assert {address[1:] for address in page.fetched} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(page.ids)


def test_the_page_names_every_group_and_setting(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, label="fedprox", algorithm={"mu": mu}) for mu in (0.01, 0.1)]
    folders.append(write_run(tmp_path, label="scaffold"))
    text = page_of(folders, tmp_path)
    for name in ("fedprox mu=0.01", "fedprox mu=0.1", "scaffold"):
        assert f'<th scope="row">{name}</th>' in text
        assert f"Complete configuration: {name}" in text
    assert "<h1>fedprox mu=0.01, fedprox mu=0.1 and scaffold on digits</h1>" in text
    assert '<th scope="row"><code>algorithm.mu</code></th><td>0.01</td><td>0.1</td><td>—</td>' in text
    assert 'aria-label="accuracy (%) against round: fedprox mu=0.01 from 20 to 60;' in text


@pytest.mark.figures
def test_a_label_cannot_write_html(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>_$x$ & "y"'
    folders = [write_run(tmp_path, label=evil), write_run(tmp_path, label="_hidden", algorithm={"note": evil})]
    page = Loads()
    text = report.write(folders, tmp_path / "report.html", title=evil).read_text("utf-8")
    page.feed(text)
    assert page.tags.count("script") == 1  # our own
    assert "<script>alert" not in text
    assert "<title>&lt;script&gt;" in text
    assert "_hidden (1 seed, no interval)" in text  # matplotlib may drop a label with an underscore
    assert "alert" in printed(folders)


@pytest.mark.figures
def test_colours_of_the_page_follow_light_and_dark(tmp_path: Path) -> None:
    text = page_of([write_run(tmp_path)], tmp_path)
    style, drawn = text.split("</style>")
    used = set(re.findall(r"var\(--([\w-]+)\)", drawn))
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert {"ink", "rule", "series-0", "phase-0"} <= used
    assert all(f"--{name}:" in light and f"--{name}:" in dark for name in used)
    assert not re.findall(r"(?:fill|stroke): #", drawn)


def test_figures_are_written_beside_the_page(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "card.html"
    report.write([write_run(tmp_path / "runs", after=(0.5, 0.6, 0.7))], out, figures=("png", "pdf"))
    names = ["accuracy", "bytes", "clients", "clients-after", "loss", "time"]
    files = sorted(path.name for path in out.parent.iterdir())
    assert files == sorted(["card.html", *(f"card-{name}.{kind}" for name in names for kind in ("png", "pdf"))])
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in out.parent.glob("*.png"))
    assert all(path.read_bytes().startswith(b"%PDF") for path in out.parent.glob("*.pdf"))


def test_another_kind_of_figure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"'svg' cannot be written\. Use 'png' or 'pdf'"):
        report.write([write_run(tmp_path)], tmp_path / "r.html", figures=["svg"])  # type: ignore[list-item]


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = write_run(tmp_path / "runs"), tmp_path / "out" / "report.html"
    report.write([folder], out)
    before = out.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write([folder], out, title="another")
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


@pytest.mark.figures
def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert page_of([folder], tmp_path) == page_of([folder], tmp_path)


def test_a_bare_run_still_gives_a_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, clients=None)
    (folder / "record.jsonl").write_text('{"round": 1, "train_loss": 1.5}\n')
    assert "training loss" in page_of([folder], tmp_path).lower()
    assert [plot.name for plot in plots(group(read_runs([folder])), primary(read_runs([folder])))] == ["train-loss"]
    assert "training loss" in printed([folder])


@pytest.mark.figures
def test_odd_numbers_can_be_drawn(tmp_path: Path) -> None:
    odd = (math.nan, math.inf, 1e-9, 1e9)
    folders = [write_run(tmp_path, metric="mse", values=odd, seed=seed, label="a" * 90) for seed in (0, 1)]
    folders += [write_run(tmp_path, metric="mse", values=[math.nan] * 4, label=f"run {n}") for n in range(9)]
    folders += [write_run(tmp_path, metric="mse", values=[1.0], label="模型")]
    report.write(folders, tmp_path / "out" / "report.html", figures=["png"])


def test_the_terminal_table_fits_80_columns(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, label=label, seed=s) for label in ("fedavg", "local") for s in (0, 1)]
    folders.append(write_run(tmp_path, label="a-long-label-for-a-run", algorithm={"mu": 0.001}, after=(0.5, 0.6, 0.7)))
    text = printed(folders)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(word in text for word in ("test", "worst 10%", "gain", "MB up", "s/round", "  60.0  ", "then tuned"))
    assert "…" not in text


def test_numbers_keep_three_digits() -> None:
    shown = [significant(v) for v in (0, 0.06234, 1.234, 12.34, 123.4, 1234.5, 2.5e-6, 3e7)]
    assert shown == ["0", "0.0623", "1.23", "12.3", "123", "1,234", "2.50e-06", "3.00e+07"]


def test_equal_seeds_show_no_rounding_noise() -> None:
    column = Column("key", "span", "title", "meaning")
    cell = column.cell(interval([0.97, 0.97, 0.97]))
    assert (cell.spread, cell.inline) == ("", "0.970 (all equal)")  # "± 0" would claim certainty
    assert column.cell(interval([0.97, 0.97, 0.98])).spread == "0.0143"


def test_the_configuration_reads_as_toml() -> None:
    import tomllib

    config = {
        "rounds": 3,
        "name": 'a "b"',
        "skip": None,
        "local": {"lr": 0.1, "on": True, "sizes": [1, 2], "optimizer": {"name": "sgd"}},
        "transform": [{"name": "clip", "bound": 1.0}, {"name": "noise"}],
    }
    assert tomllib.loads(settings.toml(config)) == {key: value for key, value in config.items() if key != "skip"}


def test_a_path_that_leads_nowhere_is_none() -> None:
    assert find({"a": {"b": 1}}, "a", "b") == 1
    assert find({"a": 1}, "a", "b") is None


@pytest.mark.parametrize("module", [metrics, prose, render, settings, text_table])
def test_examples_in_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_report_never_needs_torch() -> None:
    code = "import atoll.report, sys; sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_clients_hold_is_drawn_where_it_was_recorded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    atoll.run(
        {
            "rounds": 1,
            "data": "digits",
            "partition": {"name": "iid", "clients": 3},
            "algorithm": {"name": "fedavg", "lr": 0.1},
            "task": {"model": "linear"},
            "engine": "loop",
        },
        run,
    )
    counts = json.loads((run / "run.json").read_text())["label_counts"]
    assert np.shape(counts) == (3, 10)
    assert np.sum(counts) == 1438
    assert "Classes by client" in report.write([run], tmp_path / "report.html").read_text("utf-8")


def test_the_page_says_on_how_much_runs_were_measured_and_whose_their_seconds_are(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "runs"), write_run(tmp_path / "runs", label="fedprox")
    info = json.loads((one / "run.json").read_text())
    few = 'Metrics are of 10 of the 20 test examples. For all of them: evaluate.rows = "all".'
    info |= {"notes": [few, "2 of 20 clients are small."], "engine": {"reason": "one of 3 runs in a stack"}}
    (one / "run.json").write_text(json.dumps(info))
    page = html.unescape(page_of([one, other], tmp_path))
    assert f"fedavg: {few}" in page
    assert "fedavg: These runs shared one stack: their seconds are those of the whole stack" in page
    assert "clients are small" not in page  # that is in run.json


# ------------------------------------------------------------------------------------------------- under the pointer


def stripes(folders: Sequence[Path]) -> list[tuple[float, float, float, str]]:
    """Where those of the first figure begin, how wide and high they are, and what they say."""
    svg = plots(group(read_runs(folders)), ACCURACY)[0].svg()
    found = re.findall(r'<rect x="(.+?)" y=".+?" width="(.+?)" height="(.+?)"><title>([^<>]+?)</title>', svg)
    return [(float(x), float(width), float(height), html.unescape(title)) for x, width, height, title in found]


@pytest.mark.figures
def test_a_figure_says_under_the_pointer_what_every_group_reached_there(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, seed=seed, values=(0.2, 0.5 + seed / 10, 0.6)) for seed in (0, 1)]
    folders.append(write_run(tmp_path, label="<b>prox</b>", values=(0.3, 0.4)))
    found = stripes(folders)
    assert [title for *_, title in found] == [
        "round: 1\nfedavg: 20 ± 0\n<b>prox</b>: 30",
        "round: 2\nfedavg: 55 ± 64\n<b>prox</b>: 40",
        "round: 3\nfedavg: 60 ± 0",
    ]
    (first, wide, _, _), (second, twice, high, _), (third, again, _, _) = found
    assert second == pytest.approx(first + wide, abs=0.2)  # no gap between stripes
    assert third == pytest.approx(second + twice, abs=0.2)
    assert (twice, again) == pytest.approx((2 * wide, wide), abs=0.2)  # each is nearest to its round
    assert high > 100


@pytest.mark.figures
def test_long_curves_have_few_stripes_and_a_single_round_has_one(tmp_path: Path) -> None:
    long = stripes([write_run(tmp_path / "long", values=[i / 1000 for i in range(1, 801)])])
    assert (len(long), long[0][3], long[-1][3]) == (40, "round: 1\nfedavg: 0.1", "round: 800\nfedavg: 80")
    ((_, wide, _, title),) = stripes([write_run(tmp_path / "short", values=(0.5,))])
    assert (wide, title) == (20, "round: 1\nfedavg: 50")
