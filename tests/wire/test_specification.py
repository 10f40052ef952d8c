"""docs/wire.md is true: its example is what Python writes, and a program in another language reads payloads."""

import json
import re
import shutil
import subprocess

import pytest
import torch

from atoll import tree
from atoll.wire import SERVER, Layout, encode
from atoll.wire.part import DTYPES, TORCH
from tests.support.paths import ROOT

node = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


def read_by_node(data: bytes, folder) -> subprocess.CompletedProcess[str]:
    path = folder / "payload.bin"
    path.write_bytes(data)
    return subprocess.run(["node", str(ROOT / "examples/wire/decode.js"), str(path)], capture_output=True, text=True)


def test_the_example_of_the_page_is_what_is_written():
    block = re.search(r"```hex\n(.*?)```", (ROOT / "docs/wire.md").read_text(), re.S)
    lines = [re.match(r"(?:[0-9a-f]{2} {0,2})+(?= |$)", line) for line in block[1].splitlines()]
    values = {
        "w": torch.tensor([1.0, -2.0]),
        "levels": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "indices": torch.tensor([3, 10, 200]),
    }
    layout = Layout.of(values, levels={"kind": "bits", "bits": 3}, indices={"kind": "sorted", "limit": 256})
    written = encode(layout, values, kind="update", round=7, sender=3)
    assert bytes.fromhex("".join(line[0] for line in lines)).hex(" ") == written.hex(" ")


def everything() -> tuple[tree.Tree, Layout]:
    """Every type of number with its extremes, every kind, and what is empty."""
    special = torch.tensor([0.0, -0.0, 1.5, -3e-5, 6e-8, float("inf"), -float("inf"), float("nan")])
    whole = {n: torch.iinfo(d) for n, d in TORCH.items() if n != "bool" and not d.is_floating_point}
    draw = torch.Generator().manual_seed(0)
    values: tree.Tree = {
        "raw": {name: special.to(TORCH[name]) for name in DTYPES if TORCH[name].is_floating_point}
        | {name: torch.tensor([info.min, 1, info.max], dtype=TORCH[name]) for name, info in whole.items()}
        | {"bool": torch.tensor([[True], [False]]), "scalar": torch.tensor(7.25), "none": torch.zeros(0, 3)},
        "bits": {str(b): torch.randint(0, 1 << b, (77,), generator=draw) for b in (1, 2, 3, 8, 13, 31, 32)},
        "sorted": {
            str(k): torch.randperm(5000, generator=draw)[:k].sort().values for k in (0, 1, 10, 600, 1700, 4000, 5000)
        },
        "ü": {"buffers": {}},
        "stored": torch.tensor([5, 6]),
    }
    encodings = {f"bits/{b}": {"kind": "bits", "bits": int(b)} for b in values["bits"]}
    encodings |= {"sorted/*": {"kind": "sorted", "limit": 5000}, "stored": {"coder": "zstd"}}
    values["sorted"]["far"] = torch.tensor([0, 2**40, 2**48 - 1])
    encodings["sorted/far"] = {"kind": "sorted", "limit": 2**48}
    return values, Layout.of(values, **encodings)


@node
def test_a_program_in_another_language_reads_a_payload(tmp_path):
    values, layout = everything()
    done = read_by_node(encode(layout, values, kind="masked_input", round=2**32 - 1, sender=SERVER), tmp_path)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert (read["kind"], read["round"], read["sender"]) == ("masked_input", 2**32 - 1, str(SERVER))
    assert read["empty"] == ["ü/buffers"]
    for part, theirs, x in zip(layout.parts, read["parts"], tree.leaves(values), strict=True):
        assert (part.path, part.kind, list(part.shape), part.dtype, part.coder) == tuple(
            theirs[name] for name in ("path", "kind", "shape", "dtype", "coder")
        )
        number = float if x.is_floating_point() else int
        assert [repr(number(n)) for n in theirs["values"]] == [repr(number(n)) for n in x.flatten().tolist()], part


@node
def test_it_says_which_parts_it_does_not_read_and_what_is_no_payload(tmp_path):
    zeros = {"a": torch.zeros(500, dtype=torch.uint8), "b": torch.zeros(500)}
    layout = Layout.of(zeros, a={"kind": "bits", "bits": 2, "coder": "entropy"}, b={"coder": "zstd"})
    data = encode(layout, zeros, kind="update", round=0, sender=0)
    said = [part["values"] for part in json.loads(read_by_node(data, tmp_path).stdout)["parts"]]
    assert said == [f"coded with {coder}: this program decodes plain parts only" for coder in ("entropy", "zstd")]
    done = read_by_node(data[:-1] + bytes([data[-1] ^ 1]), tmp_path)
    assert (done.returncode, done.stderr) == (1, "decode.js: checksum is wrong\n")
