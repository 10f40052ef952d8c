"""One run on many processes: the result is that of one process, whoever trains whom, and nobody hangs."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import tree
from atoll.core import Info, Reducer, Spec, Total, Train, Update
from atoll.engines.ranks import Costs, Ranked, deal, greedy, in_turn
from atoll.engines.ranks import buffers as flat
from atoll.engines.ranks.ranked import batch_ends
from atoll.engines.ranks.world import threads, timeout
from atoll.errors import AtollError, ConfigError
from atoll.experiment import Experiment
from atoll.reducers import Mean
from atoll.rounds import Central
from atoll.runs import Run
from atoll.tree import Tree
from tests.support.marks import slow
from tests.support.on_ranks import FEDAVG, alike, close, experiment, on_cpu, ranks, together
from tests.support.waiting import until

ROOT = Path(atoll.__file__).parents[1]
NOISY = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "gaussian_noise", "noise_multiplier": 0.1}]


def normed(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


@dataclass(frozen=True)
class Held:
    """A partial aggregate that no engine has seen before."""

    total: Total


@dataclass(frozen=True)
class Strange(Reducer[Held]):
    """The mean, with partial aggregates of its own."""

    def spec(self) -> Spec:
        return Mean().spec()

    def zero(self, like: Tree) -> Held:
        return Held(Total.zero(like))

    def lift(self, updates: Update, info: Info, key: Tensor) -> Held:
        return Held(Mean().lift(updates, info, key))

    def merge(self, a: Held, b: Held) -> Held:
        return Held(a.total.merge(b.total))

    def finish(self, partial: Held, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return partial.total, state, {}


CPU = ["--device", "cpu"]
PLATEAU = {"name": "plateau", "start": 0.1, "patience": 1, "threshold": 0.9}


KINDS: dict[str, dict[str, Any]] = {
    "a schedule that looks back": {
        "algorithm": {"name": "fedavg", "lr": PLATEAU},
        "evaluate": {"every": 1, "after": True, "batch": 64},
        "engine": "auto",
    },
    "private, dropout": {
        "transform": NOISY,
        "task": {"model": {"name": "mlp", "widths": [8], "dropout": 0.4}},
        "engine": "loop",
    },
    "a bound that moves, residues": {
        "transform": [
            "equal_weights",
            "adaptive_clip",
            {"name": "fixed_point", "step": 0.001},
            {"name": "skellam", "noise_multiplier": 0.5},
            {"name": "secure_sum", "bits": 24},
        ],
    },
    "a secure sum, clients lost": {
        "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}],
        "secure": {"protocol": "secagg", "dropout": 0.2, "threshold": 0.5},
    },
    "scaffold": {"algorithm": {"name": "scaffold", "lr": 0.1}, "rounds": 4},
    "residuals, drawn twice": {
        "transform": [{"name": "top_k", "share": 0.2}],
        "cohort": {"name": "fixed_with_replacement", "size": 12},
        "engine": "threads",
    },
    "median": {"reducer": "median"},
    "gossip": {"round": "gossip", "cohort": "everyone", "rounds": 2},
    "nobody at times": {"cohort": {"name": "poisson", "size": 0.7}, "rounds": 6},
    "a reducer of somebody's own": {"reducer": f"{__name__}:Strange", "cohort": {"name": "fixed", "size": 2}},
    "one client, median": {"cohort": {"name": "fixed", "size": 1}, "reducer": "median"},
    "personal models": {"algorithm": {"name": "fedper", "lr": 0.1}, "evaluate": {"clients": 7, "every": 2}},
    "statistics in a second pass": {"task": {"model": {"name": f"{__name__}:normed"}, "batch_norm": "recompute"}},
}


# ------------------------------------------------------------------------------------------------- without processes


def test_the_longest_go_first_to_whom_has_least_to_do() -> None:
    costs = [1.0, 1.0, 1.0, 9.0, 2.0, 2.0, 2.0]
    loads = [sum(c for c, r in zip(costs, greedy(costs, 2), strict=True) if r == rank) for rank in (0, 1)]
    assert sorted(loads) == [9.0, 9.0]
    assert in_turn(costs, 2) == [0, 1, 0, 1, 0, 1, 0]
    assert greedy([], 3) == []
    assert sorted(greedy([5.0, 5.0], 4)) == [0, 1]


def test_greedy_is_within_four_thirds_of_the_best() -> None:
    rng = np.random.default_rng(0)
    for world in (2, 3, 8):
        costs = rng.lognormal(1, 1.5, 100).tolist()
        loads = np.bincount(greedy(costs, world), costs, world)
        assert loads.max() <= 4 / 3 * max(sum(costs) / world, max(costs))


def test_homes_are_even_in_clients_and_in_steps() -> None:
    steps = torch.from_numpy(np.random.default_rng(0).lognormal(2, 1, 1000)).ceil().long()
    for world in (2, 3, 7):
        homes = deal(steps, world)
        clients, load = torch.bincount(homes), torch.bincount(homes, steps.double())
        assert clients.max() - clients.min() <= 1
        assert load.max() - load.min() <= steps.max()
        assert torch.equal(homes, deal(steps, world))


def test_the_base_cost_is_found_in_the_seconds_of_past_rounds() -> None:
    costs, rng = Costs(), np.random.default_rng(0)
    assert costs([3, 5]) == [3.0, 5.0]
    for _ in range(6):
        found = [(int(n), int(s), 0.02 * n + 0.001 * s) for n, s in rng.integers(1, 60, (3, 2))]
        costs.learn(found)
    assert costs.base == 16.0  # 20 steps, to the nearest power of 2
    assert costs([3, 5]) == [19.0, 21.0]
    alike = Costs()
    for _ in range(6):
        alike.learn([(4, 40, 1.0), (2, 20, 0.5), (0, 0, 0.0)])
    assert alike.base == 0.0  # nothing tells base and step apart
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_BALANCE", "steps")
        fixed = Costs()
        for _ in range(6):
            fixed.learn([(3, 5, 2.0), (1, 9, 1.0)])
        assert fixed([3, 5]) == [3.0, 5.0]
        patch.setenv("ATOLL_BALANCE", "luck")
        with pytest.raises(ConfigError, match="ATOLL_BALANCE: must be 'seconds' or 'steps'"):
            Costs()
    flat_ = Costs()
    for _ in range(6):
        flat_.learn([(int(n), int(s), 0.02 * n) for n, s in rng.integers(1, 60, (3, 2))])
    assert flat_([3, 5]) == [1.0, 1.0]


def test_trees_go_through_few_buffers_and_come_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "PIECE", 64)
    rows = {"a": torch.randn(3, 5), "b": {"c": torch.arange(3), "d": torch.tensor([True, False, True])}, "e": {}}
    rows["e"] = {"empty": torch.zeros(3, 0), "half": torch.randn(3, 2).half()}
    calls: list[Tensor] = []

    def gather(x: Tensor) -> Tensor:
        calls.append(x)
        return torch.stack([x, x.flip(0)])

    def triple(x: Tensor) -> None:
        x.mul_(3)

    one = {"a": torch.ones(1, 1), "n": torch.tensor([7])}  # bytes that begin where no whole number may
    assert tree.digest(flat.joined(one, [1, 0], lambda x: torch.stack([x, x]))) == tree.digest(one)
    found = flat.joined(rows, [3, 3], gather)
    wanted = tree.map(lambda x: torch.cat([x, x.flip(0)]), rows)
    assert tree.digest(found) == tree.digest(wanted)
    assert 1 < len(calls) < 5
    values = {"x": torch.ones(3), "y": {"z": torch.ones(2, 2)}, "n": torch.ones(2, dtype=torch.int64)}
    assert tree.digest(flat.summed(values, triple)) == tree.digest(tree.scale(values, 3))
    assert tree.digest(flat.moved(rows, lambda x: None)) == tree.digest(rows)
    assert tree.digest(flat.zeros(flat.layout(rows))) == tree.digest(tree.zeros_like(rows))


@pytest.mark.parametrize(
    ("rows", "batch", "ranks"), [(1000, 64, 3), (10, 64, 3), (0, 5, 2), (128, 64, 2), (129, 64, 2)]
)
def test_batches_are_cut_as_one_process_cuts_them(rows: int, batch: int, ranks: int) -> None:
    ends = batch_ends(rows, batch, ranks)
    assert (ends[0], ends[-1], len(ends)) == (0, rows, ranks + 1)
    assert ends == sorted(ends)
    assert all(e % batch == 0 for e in ends[:-1] if e < rows)


def test_ranks_on_a_machine_divide_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.engines.ranks.world.cores", lambda: 16)
    for name, value, wanted in (("OMP_NUM_THREADS", "1", 4), ("OMP_NUM_THREADS", "3", 3), ("ATOLL_THREADS", "1", 1)):
        monkeypatch.setenv(name, value)
        assert threads(4) == wanted
    monkeypatch.setenv("ATOLL_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="ATOLL_TIMEOUT: must be seconds above 0"):
        timeout()


# ----------------------------------------------------------------------------------------------------- with processes


def many_runs(rank: int, folder: Path, given: dict[str, dict[str, Any]]) -> None:
    """Every experiment, one after the other in the same processes; what this rank got of each goes into a file."""
    got: dict[str, Any] = {}
    for name, changes in given.items():
        run = on_cpu(experiment(**changes), folder / name)
        got[name] = [tree.digest(run.params), run.status, len(run.history), run.history[-1]["model"]]
    got["error"] = _refused(lambda: on_cpu(experiment(algorithm={"name": "fedavg", "lr": 1e38}), folder / "far"))
    got["folder"] = _refused(lambda: on_cpu(experiment(seed=3), folder / "median"))
    got["unlike"] = _refused(lambda: on_cpu(experiment(seed=rank), folder / "unlike"))
    got["broken"] = _simulated(folder / "broken")
    _run_astray(rank, folder / "astray")
    torch.manual_seed(rank)
    got["drawn"] = _refused(lambda: _simulated(None, nn.Linear(3, 2)))
    got["failed"] = fails_in_round_3(rank, folder / "failed")
    (folder / f"rank{rank}.json").write_text(json.dumps(got))


def _run_astray(rank: int, folder: Path) -> None:
    """Rank 1 goes astray in round 2."""
    run, seen = Central.run, []

    def rounded_otherwise(self: Central, *args: Any) -> Any:
        state, outcome = yield from run(self, *args)
        seen.append(1)
        astray = rank == 1 and len(seen) == 2
        return ({**state, "server": tree.scale(state["server"], 1.01)} if astray else state), outcome

    Central.run = rounded_otherwise  # type: ignore[method-assign]
    on_cpu(experiment(), folder)
    Central.run = run  # type: ignore[method-assign]


def _refused(do: Callable[[], Any]) -> list[str]:
    try:
        do()
    except AtollError as e:
        return [type(e).__name__, str(e)]
    return []


def _simulated(out: Path | None, model: nn.Module | None = None) -> list[Any]:
    """Arrays from Python; client 2 holds what overflows, and is left out."""
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    x[25] = 3e38
    if model is None:
        model = nn.Linear(3, 2)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
    run = atoll.simulate(
        model,
        (x, (x[:, 0] > 0).long()),
        clients=[range(i, i + 10) for i in range(0, 60, 10)],
        algorithm=FEDAVG,
        rounds=2,
        out=out,
        engine="vector",
        on_divergence="drop",
        device="cpu",
        evaluate={"clients": 0},
    )
    return [{k: v.tolist() for k, v in run.params.items()}, [e.get("dropped") for e in run.history]]


def fails_in_round_3(rank: int, folder: Path) -> list[str]:
    """A reason of rank 1's own, in the middle of a run: the end of this group of processes."""
    shares, seen = Ranked._shares, []

    def broken(self: Ranked, request: Train, steps: Tensor) -> Tensor:
        seen.append(1)
        if rank == 1 and len(seen) == 3:
            raise MemoryError("no room on this machine")
        return shares(self, request, steps)

    Ranked._shares = broken  # type: ignore[method-assign]
    try:
        on_cpu(experiment(cohort="everyone"), folder)
    except Exception as e:
        return [type(e).__name__, str(e)]
    return []


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds, each on one process."""
    folder = tmp_path_factory.mktemp("alone")
    for name, changes in KINDS.items():
        on_cpu(experiment(**changes), folder / name)
    return folder


@pytest.fixture(scope="module", params=[2, slow(3)])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """All kinds, on so many processes."""
    folder = tmp_path_factory.mktemp(f"on {request.param} ranks")
    together(request.param, many_runs, folder, KINDS)
    return request.param, folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_ranks_changes_nothing_but_the_order_of_sums(
    many: tuple[int, Path], alone: Path, kind: str
) -> None:
    alike(Run(many[1] / kind), Run(alone / kind))


def test_every_rank_gets_the_same_run(many: tuple[int, Path]) -> None:
    size, folder = many
    got = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(size)]
    for name in KINDS:
        run = Run(folder / name)
        assert [g[name] for g in got] == [
            [tree.digest(run.params), run.status, len(run.history), run.history[-1]["model"]]
        ] * size
        assert not any("realigned" in e for e in run.history)


def test_a_rank_that_goes_astray_comes_back_and_the_record_says_so(many: tuple[int, Path], tmp_path: Path) -> None:
    run = Run(many[1] / "astray")
    assert [e.get("realigned") for e in run.history] == [None, [1], None]
    close(run.params, on_cpu(experiment(), tmp_path / "run").params)


def test_an_error_is_the_same_on_every_rank(many: tuple[int, Path]) -> None:
    size, folder = many
    got = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(size)]
    assert [g["error"][0] for g in got] == ["DivergenceError"] * size
    assert Run(folder / "far").status == "failed: DivergenceError"
    assert [g["folder"] for g in got] == [got[0]["folder"]] * size
    assert "holds a run already" in got[0]["folder"][1]
    assert all("rank 1 has another experiment than rank 0" in g["unlike"][1] for g in got)
    assert not (folder / "unlike").exists()
    assert all("draw models and arrays from a seed" in g["drawn"][1] for g in got)


def test_a_rank_that_fails_is_named_with_its_reason(many: tuple[int, Path]) -> None:
    size, folder = many
    got = [json.loads((folder / f"rank{r}.json").read_text())["failed"] for r in range(size)]
    assert got[1] == ["MemoryError", "no room on this machine"]
    for rank in {*range(size)} - {1}:
        assert got[rank][0] == "RankError"
        assert got[rank][1].startswith("ranks: rank 1 failed: MemoryError: no room on this machine.")
    assert f"Last checkpoint: round 2 in {folder / 'failed'}" in got[0][1]
    assert Run(folder / "failed").status == "failed: RankError"


def test_arrays_from_python_run_on_ranks_and_what_is_no_number_is_left_out(
    many: tuple[int, Path], tmp_path: Path
) -> None:
    size, folder = many
    truth, dropped = _simulated(tmp_path / "run")
    assert dropped == [[2], [2]]
    for rank in range(size):
        params, left_out = json.loads((folder / f"rank{rank}.json").read_text())["broken"]
        assert left_out == dropped
        for k, v in truth.items():
            np.testing.assert_allclose(params[k], v, rtol=1e-5, atol=1e-6)


def test_a_run_says_how_many_ranks_it_had_and_whom_they_waited_for(many: tuple[int, Path]) -> None:
    size, folder = many
    run = Run(folder / "median")
    wanted = {"count": size, "here": size, "backend": "gloo", "threads": torch.get_num_threads()}
    assert run.info["ranks"] == wanted
    for entry in run.history:
        by_rank = entry["seconds"]["ranks"]
        assert set(by_rank) == {"slowest", "fastest", "straggler"}
        assert by_rank["slowest"] >= by_rank["fastest"] >= 0
        assert 0 <= by_rank["straggler"] <= by_rank["slowest"]
    assert run.report().exists()  # seconds by rank are no phase of a round


def gpu_runs(rank: int, folder: Path, given: dict[str, dict[str, Any]]) -> None:
    for name, changes in given.items():
        atoll.run(experiment(**changes), folder / name, device="cuda")


@pytest.mark.gpu
def test_ranks_on_gpus_do_what_one_process_does(tmp_path: Path) -> None:
    """Two ranks share one GPU over the host, or have one each and NCCL."""
    exact = {"engine": {"name": "vector", "precision": "float32"}}
    given = {name: {**KINDS[name], **exact} for name in ("scaffold", "median", "gossip", "nobody at times")}
    together(2, gpu_runs, tmp_path / "many", given)
    gpu_runs(0, tmp_path / "alone", given)
    for name in given:
        ours = Run(tmp_path / "many" / name)
        assert ours.info["ranks"]["backend"] == ("nccl" if torch.cuda.device_count() > 1 else "gloo")
        close(ours.params, Run(tmp_path / "alone" / name).params, 1e-4)


# ----------------------------------------------------------------------------------------------------- ends too early

LONG = experiment(rounds=24, algorithm={"name": "scaffold", "lr": 0.1}, checkpoint={"every": 3})


def lines(folder: Path) -> int:
    path = folder / "record.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def command_line(rank: int, words: list[str], out: Path) -> None:
    """`atoll ...`, with what it prints in a file."""
    from atoll.cli.main import main

    with (out / f"said{rank}").open("w", buffering=1) as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
        sys.argv = ["atoll", *words]
        main()


def one_run(rank: int, given: dict[str, Any], folder: Path) -> None:
    on_cpu(given, folder, resume=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The long one, on one process, with nothing in its way."""
    return on_cpu(LONG, tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.slow
def test_kill_9_of_a_rank_ends_all_with_a_message_and_any_number_of_ranks_goes_on(tmp_path: Path, whole: Run) -> None:
    """By torchrun itself, which stops the survivors as soon as it sees that one is gone."""
    file, folder = tmp_path / "e.toml", tmp_path / "run"
    file.write_text(Experiment.parse(LONG).to_toml())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "atoll"]
    words = [*launcher, "run", str(file), "--out", str(folder), *CPU]
    place = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=place, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: lines(folder) >= 5, lambda: process.poll() is None)
        os.kill(_rank_process(process.pid, 1), signal.SIGKILL)
        before = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - before < 30
    assert process.returncode != 0
    said = re.search(r"ranks: rank 1 \(process \d+ on .*\) ended without a word: killed, or out of memory\?", err)
    assert said, out + err
    assert err.count("ranks: rank") == 1  # rank 0 speaks for all
    assert 'Traceback (most recent call last):\n  File "<frozen runpy>' not in err.split("ranks: rank 1")[0]
    half = Run(folder)
    assert half.status == "failed: RankError"
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)["round"]
    assert saved % 3 == 0  # the last periodic one: what rank 1 remembered of its clients is gone
    assert f"Last checkpoint: round {saved} in {folder}" in err
    together(3, one_run, LONG, folder)
    alike(Run(folder), whole)


def _rank_process(launcher: int, rank: int) -> int:
    """The process of this rank: a child of the launcher that has RANK in its environment."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and f"RANK={rank}".encode() in words:
            return int(path.name)
    raise AssertionError("no such rank")


@pytest.mark.slow
def test_without_memory_the_last_whole_round_is_kept_when_a_rank_is_killed(tmp_path: Path) -> None:
    given = experiment(rounds=300, checkpoint={"every": 0}, evaluate={"clients": 0, "every": 300})
    (tmp_path / "e.toml").write_text(Experiment.parse(given).to_toml())
    folder = tmp_path / "run"
    with ranks(3, command_line, ["run", str(tmp_path / "e.toml"), "--out", str(folder), *CPU], tmp_path) as started:
        until(lambda: lines(folder) >= 4, started[0].is_alive)
        started[2].kill()
    assert [p.exitcode for p in started] == [1, 1, -signal.SIGKILL]
    said = [(tmp_path / f"said{r}").read_text() for r in range(3)]
    assert "rank 2 (process" in said[0]
    assert "Traceback" not in said[0]
    assert not any("rank 2" in x or "Traceback" in x for x in said[1:])
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)["round"]
    assert lines(folder) - saved in (0, 1)  # a line whose round the others never heard of is cut
    cut = tmp_path / "cut"
    assert saved >= 3
    short = on_cpu({**given, "rounds": saved, "checkpoint": {"every": 0}}, cut)
    close(torch.load(folder / "checkpoint.pt", weights_only=True)["parts"]["round"]["server"]["params"], short.params)
    resumed = [json.loads(x) for x in (folder / "record.jsonl").read_text().splitlines()]
    assert resumed[saved - 1]["cohort"] == short.history[-1]["cohort"]


def test_a_signal_to_one_rank_stops_all_after_the_same_round(tmp_path: Path, whole: Run) -> None:
    (tmp_path / "e.toml").write_text(Experiment.parse(LONG).to_toml())
    folder = tmp_path / "run"
    with ranks(2, command_line, ["run", str(tmp_path / "e.toml"), "--out", str(folder), *CPU], tmp_path) as started:
        until(lambda: lines(folder) >= 2, started[0].is_alive)
        os.kill(started[1].pid, signal.SIGTERM)
    assert [p.exitcode for p in started] == [130, 130]
    half = Run(folder)
    assert half.status == "interrupted"
    done = len(half.history)
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["round"] == done < 24
    said = [(tmp_path / f"said{r}").read_text() for r in range(2)]
    assert f"Stopped after round {done} of 24, with a checkpoint." in said[0]
    words = shlex.split(said[0].split("Go on with:\n")[1].strip())
    assert words[:6] == ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "atoll"]
    assert words[6:] == ["run", str(tmp_path / "e.toml"), *CPU, "--out", str(folder), "--resume"]
    assert "Stopped" not in said[1]
    resumed = on_cpu(tmp_path / "e.toml", folder, resume=True)  # alone: memory comes to one store
    assert "ranks" not in resumed.info
    alike(resumed, whole)
