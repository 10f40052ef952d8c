"""Every client's memory: in memory, in a file, in a checkpoint."""

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll import tree
from atoll.algorithms.scaffold import Scaffold
from atoll.engines import Kept, Loop, RowLayout, RowStore, Threads, Vector, join_pieces
from atoll.errors import RecordError, TrainingError
from atoll.records import RunFolder
from atoll.runs import checkpoint
from atoll.testing.harness import federation
from atoll.testing.problems import network
from atoll.tree import Tree

CPU = torch.device("cpu")
linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory is in use")


def distance(a: Tree, b: Tree) -> float:
    return float(tree.norm(tree.sub(a, b)))


def row_of(values: float) -> Tree:
    return {"algorithm": {"control": torch.full((3,), values)}, "chain": {"0": {"residual": torch.full((), values)}}}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_untouched_rows_are_the_first_one() -> None:
    store = RowStore(row_of(2.0), 10, CPU)
    assert distance(store.read(torch.tensor([3, 3, 9])), tree.stack(row_of(2.0), 3)) == 0.0
    store.write(torch.tensor([9]), tree.stack(row_of(5.0), 1))
    mixed = store.read(torch.tensor([3, 9]))
    assert distance(tree.rows(mixed, 0), row_of(2.0)) == 0.0
    assert distance(tree.rows(mixed, 1), row_of(5.0)) == 0.0


@linux
@pytest.mark.parametrize("budget", [1 << 40, 1])
def test_a_million_untouched_rows_take_no_memory(budget: int, tmp_path: Path) -> None:
    """Two gigabytes of addresses: only pages that are written exist."""
    before = resident_bytes()
    store = RowStore({"big": torch.zeros(500)}, 1_000_000, CPU, budget, tmp_path)
    store.write(torch.tensor([999_999]), {"big": torch.ones(1, 500)})
    assert store.read(torch.tensor([999_999, 0]))["big"].sum(1).tolist() == [500.0, 0.0]
    assert store.in_file == (budget == 1)
    assert resident_bytes() - before < 100e6
    if store.file:
        assert store.file.total >= 2e9
        assert store.file.allocated() < 1e6


def test_rows_that_outgrow_the_budget_live_in_a_file_without_a_name(tmp_path: Path) -> None:
    store = RowStore(row_of(1.0), 100, CPU, budget=1_000, folder=tmp_path)
    assert store.in_file
    assert store.file is None  # nobody has written yet
    ids = torch.tensor([7, 42])
    store.write(ids, tree.map(lambda a, b: torch.stack([a, b]), row_of(3.0), row_of(4.0)))
    assert store.file is not None
    assert not list(tmp_path.iterdir())  # so that it goes even with kill -9
    assert store.read(torch.tensor([42, 0, 7]))["algorithm"]["control"][:, 0].tolist() == [4.0, 1.0, 3.0]


def test_a_file_goes_without_a_warning_and_gives_its_descriptor_back(tmp_path: Path) -> None:
    def used() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    if not Path("/proc/self/fd").exists():
        pytest.skip("asks Linux which files are open")
    before = used()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        store = RowStore(row_of(1.0), 100, CPU, budget=1_000, folder=tmp_path)
        store.write(torch.tensor([1]), tree.stack(row_of(3.0), 1))
        assert used() > before
        del store
        assert used() == before
    assert not seen


def test_rows_within_the_budget_are_in_no_file(tmp_path: Path) -> None:
    assert not RowStore(row_of(1.0), 100, CPU, budget=2_000, folder=tmp_path).in_file


def test_an_algorithm_without_memory_keeps_none() -> None:
    store = RowStore({"algorithm": {}, "chain": {}}, 10, CPU)
    store.write(torch.tensor([1]), {"algorithm": {}, "chain": {}})
    assert store.empty
    assert store.read(torch.arange(4)) == {"algorithm": {}, "chain": {}}
    assert not list(store.pieces())


# ----------------------------------------------------------------------------------- a file is what memory is, exactly

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool]
leaf = st.tuples(st.sampled_from(TYPES), st.lists(st.integers(1, 4), max_size=3))


def numbers(like: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    made = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, *like.shape)) * 9)
    return made.to(like.dtype) if like.dtype != torch.bool else made > 0


@given(
    leaves=st.lists(leaf, min_size=1, max_size=4),
    size=st.integers(1, 30),
    rounds=st.lists(st.lists(st.integers(0, 29), max_size=12, unique=True), max_size=5),
    data=st.data(),
)
def test_rows_in_a_file_are_the_rows_in_memory_bit_for_bit(leaves, size, rounds, data, tmp_path_factory) -> None:
    first = {f"x{i}": numbers(torch.zeros(shape, dtype=kind), 1, i)[0] for i, (kind, shape) in enumerate(leaves)}
    folder = tmp_path_factory.mktemp("rows")
    inside, file = RowStore(first, size, CPU), RowStore(first, size, CPU, 0, folder)
    assert file.in_file
    for n, drawn in enumerate(rounds):
        ids = torch.tensor([i % size for i in drawn], dtype=torch.int64).unique()
        rows = {k: numbers(x, len(ids), 100 * n + i) for i, (k, x) in enumerate(first.items())}
        for store in (inside, file):
            store.write(ids, rows)
    look = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40)))
    assert tree.digest(inside.read(look)) == tree.digest(file.read(look))
    other = RowStore(first, size, CPU, 0, folder)
    other.load(inside.pieces())
    assert tree.digest(other.read(look)) == tree.digest(inside.read(look))
    assert other.ids().tolist() == inside.ids().tolist()


def test_big_reads_and_writes_go_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.engines.row_file._BLOCK", 64)
    monkeypatch.setattr("atoll.engines.row_file._ROWS", 3)
    monkeypatch.setattr("atoll.engines.client_state._PIECE", 100)
    inside, file = (RowStore(row_of(0.0), 40, CPU, budget, tmp_path) for budget in (10**6, 0))
    ids = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:31]
    rows = {"algorithm": {"control": torch.randn(31, 3)}, "chain": {"0": {"residual": torch.randn(31)}}}
    for store in (inside, file):
        store.write(ids, rows)
    assert tree.digest(file.read(torch.arange(40))) == tree.digest(inside.read(torch.arange(40)))
    pieces = list(file.pieces())
    assert [len(i) for i, _ in pieces] == [3] * 10 + [1]
    assert torch.equal(torch.cat([i for i, _ in pieces]), ids.sort().values)
    found = torch.cat([held["algorithm"]["control"] for _, held in pieces])
    assert torch.equal(found, rows["algorithm"]["control"][ids.argsort()])


def test_a_layout_reads_back_what_it_packed() -> None:
    rows = {"a": torch.randn(5, 3), "b": {"c": torch.arange(5).to(torch.int8), "d": torch.randn(5, 2, 2).double()}}
    layout = RowLayout(tree.rows(rows, 0))
    assert layout.width % 16 == 0
    assert tree.digest(layout.views(layout.pack(rows))) == tree.digest(rows)


@linux
def test_resident_memory_stays_flat_while_a_file_fills(tmp_path: Path) -> None:
    """80 MB of rows go through a store; its own pages must not stay in view."""
    store = RowStore({"x": torch.zeros(1000)}, 20_000, CPU, 0, tmp_path)
    rows = {"x": torch.randn(200, 1000)}

    def through(first: int) -> None:
        ids = torch.arange(first, first + 200)
        store.write(ids, rows)
        assert torch.equal(store.read(ids)["x"], rows["x"])

    through(0)
    before = resident_bytes()
    for first in range(200, 20_000, 200):
        through(first)
    assert store.file is not None
    assert store.file.allocated() >= 80e6
    assert resident_bytes() - before < 20e6


@pytest.mark.parametrize("engine", [Loop, Vector, Threads])
def test_an_engine_goes_back_to_what_it_held(engine: Any) -> None:
    problem = network()
    made = federation(problem, Scaffold(problem.task, 0.1, population=6), engine)
    made.run([3, 1])
    held = join_pieces(made.engine.state().pieces(), made.store.layout)
    before = tree.digest(made.rows())
    assert made.engine.state().ids().tolist() == held["ids"].tolist() == [1, 3]
    made.run([0, 3])
    assert tree.digest(made.rows()) != before
    made.engine.load([(held["ids"], held["rows"])])
    assert tree.digest(made.rows()) == before
    assert made.engine.state().ids().tolist() == [1, 3]
    kept = Kept(held["ids"], held["rows"], made.store.layout)
    assert tree.digest(join_pieces(kept.pieces(), kept.layout)) == tree.digest(held)
    made.engine.load(())
    assert not len(made.engine.state().ids())
    assert not len(join_pieces(made.engine.state().pieces(), made.store.layout)["ids"])


# --------------------------------------------------------------------------------------------------------- a full disk


@pytest.mark.slow
def test_a_disk_that_is_full_is_an_error_that_says_so_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, as a full disk would: here with a limit on the size of files."""
    program = f"""
        import resource, torch
        from pathlib import Path
        from atoll.engines import RowStore
        store = RowStore({{"x": torch.zeros(1000)}}, 1000, torch.device("cpu"), 0, Path({str(tmp_path)!r}))
        store.write(torch.tensor([0]), {{"x": torch.ones(1, 1000)}})
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        store.write(torch.tensor([1]), {{"x": torch.ones(1, 1000)}})
        try:
            store.write(torch.tensor([999]), {{"x": torch.ones(1, 1000)}})
        except Exception as e:
            print(type(e).__name__, e)
            print(store.ids().tolist(), store.read(torch.tensor([1, 999]))["x"].sum(1).tolist())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=Path.cwd(), check=False
    )
    assert done.returncode == 0, done.stderr or signal.Signals(-done.returncode)
    said, left = done.stdout.splitlines()
    assert said.startswith("TrainingError engine.spill: the clients' memory could not be written to")
    assert os.strerror(errno.EFBIG) in said
    assert "--resume" in said
    assert left == "[0, 1] [1000.0, 0.0]"  # what was there is there


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    store = RowStore(row_of(1.0), 100, CPU, 0, tmp_path / "nowhere")
    with pytest.raises(TrainingError, match=r"engine\.spill: .*nowhere \(No such file or directory\)"):
        store.write(torch.tensor([1]), tree.stack(row_of(1.0), 1))


# --------------------------------------------------------------------------------------------------------- checkpoints


def saved(tmp_path: Path, touched: int, budget: int = 10**6) -> tuple[RunFolder, RowStore]:
    folder = RunFolder(tmp_path / "run")
    folder.create(0)
    store = RowStore({"x": torch.zeros(1000)}, 5_000, CPU, budget, tmp_path)
    store.write(torch.arange(touched) * 2, {"x": torch.randn(touched, 1000)})
    checkpoint.write(folder, {"server": {"w": torch.ones(2)}}, store, store.layout, 7)
    return folder, store


@pytest.mark.parametrize("budget", [0, 1 << 40])
def test_a_checkpoint_holds_the_touched_rows_and_only_those(tmp_path: Path, budget: int) -> None:
    folder, store = saved(tmp_path, 50, budget)
    assert (folder.path / "memory-7.rows").stat().st_size == 50 * (8 + store.layout.width)
    found = checkpoint.read_checkpoint(folder)
    assert found.rounds == 7
    other = RowStore(store.first, store.size, CPU, 1 << 40 if budget == 0 else 0, tmp_path)
    other.write(torch.tensor([9]), {"x": torch.ones(1, 1000)})
    other.load(checkpoint.rows(folder, found, other.layout))
    everyone = torch.arange(200)
    assert tree.digest(other.read(everyone)) == tree.digest(store.read(everyone))


def test_a_new_checkpoint_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    folder, store = saved(tmp_path, 3)
    checkpoint.write(folder, {"server": {}}, store, store.layout, 8)
    assert sorted(p.name for p in folder.path.iterdir()) == ["checkpoint.pt", "memory-8.rows"]
    empty = RowStore({}, 3, CPU)
    checkpoint.write(folder, {"server": {}}, empty, empty.layout, 9)
    assert [p.name for p in folder.path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("how", ["cut", "longer", "gone", "a bit", "other rows"])
def test_memory_that_is_not_what_was_written_is_refused(tmp_path: Path, how: str) -> None:
    folder, store = saved(tmp_path, 20)
    path, layout = folder.path / "memory-7.rows", store.layout
    whole = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "other rows":
        layout = RowLayout({"x": torch.zeros(500, 2)})
    else:
        whole[-1] ^= 1 if how == "a bit" else 0
        path.write_bytes({"cut": whole[:-1], "longer": whole + b"\0", "a bit": whole}[how])
    with pytest.raises(RecordError, match=r"memory-7\.rows: .*Start again in a new folder"):
        list(checkpoint.rows(folder, checkpoint.read_checkpoint(folder), layout))


@pytest.mark.slow
@linux
def test_a_checkpoint_of_many_rows_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """120 MB of rows; a fresh process, so that nothing that was freed before is used again."""
    program = f"""
        import resource, torch
        from pathlib import Path
        from atoll.engines import RowStore
        from atoll.records import RunFolder
        from atoll.runs import checkpoint
        folder = RunFolder(Path({str(tmp_path)!r}) / "run")
        folder.create(0)
        def store():
            return RowStore({{"x": torch.zeros(1000)}}, 30_000, torch.device("cpu"), 0, folder.path)
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        full, other = store(), store()
        for i in range(0, 30_000, 500):
            full.write(torch.arange(i, i + 500), {{"x": torch.full((500, 1000), float(i))}})
        full.read(torch.arange(2000))
        before = peak()
        checkpoint.write(folder, {{}}, full, full.layout, 1)
        other.load(checkpoint.rows(folder, checkpoint.read_checkpoint(folder), other.layout))
        assert other.ids().equal(full.ids())
        print(peak() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=Path.cwd(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 60e6


# ---------------------------------------------------------------------------------------------------------- whole runs


def scaffold(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 6,
        "data": "digits",
        "partition": {"name": "iid", "clients": 12},
        "cohort": {"name": "fixed", "size": 4},
        "task": {"model": "linear"},
        "local": {"max_steps": 2},
        "algorithm": {"name": "scaffold", "lr": 0.1},
        "engine": "loop",
        "checkpoint": {"every": 2},
        **changes,
    }


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_a_run_that_spills_is_the_run_that_does_not(tmp_path: Path, engine: str) -> None:
    plain = atoll.run(scaffold(engine=engine), tmp_path / "plain")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    chunk = {"chunk": 1000} if engine == "vector" else {}  # memory_gb would make smaller chunks, which round otherwise
    options = {"name": engine, "memory_gb": 1e-6, "spill": str(elsewhere), **chunk}
    spilled = atoll.run(scaffold(engine=options), tmp_path / "spilled")
    assert tree.digest(plain.params) == tree.digest(spilled.params)
    assert spilled.info["engine"]["choice"]["memory_gb"] == 1e-6
    assert spilled.info["engine"]["choice"]["spill"] == str(elsewhere)
    assert not list(elsewhere.iterdir())
    rows = [(r.folder / "memory-6.rows").read_bytes() for r in (plain, spilled)]
    assert rows[0] == rows[1]


def test_a_run_that_spilled_resumes_exactly(tmp_path: Path) -> None:
    given = scaffold(engine={"name": "loop", "memory_gb": 1e-6})
    whole = atoll.run(given, tmp_path / "whole")

    def watch(done: int, rounds: int, entry: object) -> None:
        if done == 5:
            raise KeyError

    with pytest.raises(KeyError):
        atoll.run(given, tmp_path / "half", watch=watch)
    assert [p.name for p in (tmp_path / "half").glob("memory-*")] == ["memory-4.rows"]
    again = atoll.run(given, tmp_path / "half", resume=True)
    assert tree.digest(again.params) == tree.digest(whole.params)
    assert (again.folder / "memory-6.rows").read_bytes() == (whole.folder / "memory-6.rows").read_bytes()
    assert not [p for p in again.folder.iterdir() if p.name.startswith(".")]


def test_space_is_asked_for_what_the_cohorts_can_touch(tmp_path: Path) -> None:
    """Ten rounds of 4 touch at most 40 of the clients, however many there are."""
    from atoll.experiment import Experiment, set_up
    from atoll.runs import RunLoop
    from atoll.runs.lifecycle import _needed_bytes

    def needed(clients: int, rounds: int) -> int:
        given = scaffold(partition={"name": "iid", "clients": clients}, rounds=rounds)
        return _needed_bytes(RunLoop(set_up(Experiment.parse(given)), RunFolder(tmp_path)))

    assert needed(60, 10) == needed(1200, 10)
    assert needed(60, 10) > 4 * needed(60, 1)
