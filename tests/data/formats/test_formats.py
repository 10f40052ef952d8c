"""What all file formats share: their schemas, how files are found, and files that are not what they claim."""

import bz2
import gzip
import inspect
import json
import lzma
import pickle

import numpy as np
import pytest
import torch

from atoll.data import Dataset
from atoll.data.formats import FILES, safe_read
from atoll.data.formats.decoders import OneHot, Sparse
from atoll.data.formats.label_encoding import kind_of, matched, numbered, targets
from atoll.data.formats.split import held_out
from atoll.data.formats.tokenise import Words, compact, read_words
from atoll.errors import DataError, UnforeseenError
from atoll.experiment import check, schema


@pytest.mark.parametrize("name", FILES)
def test_a_format_has_a_signature_that_is_a_schema_and_a_line_that_says_what_it_is(name):
    options = schema(FILES[name])
    assert "path" in options
    assert list(options) == list(inspect.signature(FILES[name]).parameters)  # a file can give every one
    for option in options.values():
        assert option.required or option.read(option.clean(option.default)) == option.default
    first = inspect.getdoc(FILES[name]).splitlines()[0]
    assert first.endswith(".")
    assert len(first) < 120


@pytest.mark.parametrize("name", FILES)
def test_a_misspelt_option_is_told_apart_from_a_missing_one(name):
    problems = check(FILES, {"name": name, "pat": "x"}, "data")[1]
    assert any("data.pat: is not an option" in p and "Did you mean path?" in p for p in problems)
    assert not any(p.startswith("data.path: is missing") for p in problems)


@pytest.mark.parametrize("name", [n for n in FILES if n != "huggingface"])
def test_a_path_that_is_not_there_is_refused_with_what_is(name, tmp_path):
    (tmp_path / "measured.csv").write_text("a,b\n")
    needs = {"csv": {"label": "b"}, "parquet": {"label": "b"}, "celeba": {"images": tmp_path}}.get(name, {})
    with pytest.raises(DataError, match=r"data\.path: there is no (file|folder) .*Did you mean 'measured.csv'\?"):
        FILES[name](path=tmp_path / "mesured.csv", **needs)
    with pytest.raises(DataError, match=r"data\.path: there is no folder .*nowhere"):
        FILES[name](path=tmp_path / "nowhere" / "x", **needs)


def test_a_file_is_not_taken_for_a_folder_nor_the_other_way_round(tmp_path):
    (tmp_path / "cifar.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"is a file, but a folder is needed\. Unpack it first"):
        safe_read.existing_folder(tmp_path / "cifar.tar.gz")
    with pytest.raises(DataError, match=r"is a folder\. Name a file; it has 'cifar.tar.gz'"):
        safe_read.existing_file(tmp_path)


def test_a_relative_path_is_looked_for_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"there is no file my.csv in {tmp_path}"):
        safe_read.existing_file(safe_read.Path("my.csv"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_known_by_their_first_bytes_and_not_by_their_name(pack, tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(pack(b"one\ntwo\n"))
    assert safe_read.read_all(path) == b"one\ntwo\n"
    assert list(safe_read.numbered_lines(path)) == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_file_that_is_cut_short_or_spoilt_is_refused(pack, tmp_path):
    whole = pack(np.random.default_rng(0).bytes(5000))
    for content in (whole[: len(whole) // 2], whole[:100] + bytes(50) + whole[150:]):
        path = tmp_path / "spoilt"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"spoilt: (is damaged or cut short|cannot be read)"):
            safe_read.read_all(path)


def test_text_that_is_no_utf8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntw\xe9\n")
    assert next(safe_read.numbered_lines(path)) == (1, "one")
    with pytest.raises(DataError, match=r"words\.txt: line 2 is no UTF-8 text \(byte 0xe9 at 3\)"):
        list(safe_read.numbered_lines(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1', "line 1, column 8"),
        (b'{"a":\n\n "\xff"}', "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
    ],
)
def test_json_that_is_none_is_refused_with_its_place(text, message, tmp_path):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(DataError, match=message):
        safe_read.read_json(tmp_path / "x.json")


def test_more_than_the_memory_is_refused_before_it_is_taken(tmp_path):
    with pytest.raises(DataError, match=r"would take 1,048,576\.0 GiB, and this machine has .* Set size"):
        safe_read.check_memory(1 << 50, tmp_path, "Set size")
    safe_read.check_memory(1 << 10, tmp_path)


def test_a_small_file_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    monkeypatch.setattr("os.sysconf", lambda name: 100)  # 100 pages of 100 bytes
    with pytest.raises(DataError, match=r"bomb\.gz: would take"):
        safe_read.read_all(tmp_path / "bomb.gz")


def test_a_package_that_is_not_there_is_named_with_the_extra_that_brings_it():
    with pytest.raises(DataError, match=r"needs no_such_package.*pip install 'atoll\[more\]'"):
        safe_read.import_extra("no_such_package", "more")


def test_names_are_numbered_in_order_and_whole_numbers_by_size():
    texts = np.array(["b", "a", "b"], object)
    assert numbered(texts)[0].tolist() == [1, 0, 1]
    places, known = numbered(np.array(["10", "9", "10"], object))
    assert (places.tolist(), known) == ([1, 0, 1], ["9", "10"])
    assert numbered(np.array([3.0, -1.0, 3.0]))[0].tolist() == [1, 0, 1]


def test_the_same_client_has_the_same_number_in_both_parts():
    here, there = matched(np.array(["c", "a"], object), np.array(["a", "b", "c"], object))
    assert (here.tolist(), there.tolist()) == ([1, 0], [0, 2, 1])  # who is in the test only comes last
    assert matched(np.array([7, 5]), None)[1] is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([0.0, 1.0, 1.0]), "classification"),
        (np.array([0.5, 1.0]), "regression"),
        (np.array(["no", "yes"], object), "classification"),
    ],
)
def test_what_is_to_be_learned_follows_from_the_labels(values, kind):
    assert kind_of(values, "y") == kind


def test_labels_that_leave_a_doubt_are_refused_with_the_question():
    with pytest.raises(DataError, match=r"101 different values\. Is this regression\? Set kind = 'regression'"):
        kind_of(np.arange(101.0), "age")
    with pytest.raises(DataError, match=r"101 different texts\. Is it the right column"):
        kind_of(np.array([f"n{i}" for i in range(101)], object), "name")
    with pytest.raises(DataError, match=r"one value only \('a'\), so there is nothing to learn"):
        targets(np.array(["a", "a"], object), None, "y")
    with pytest.raises(DataError, match=r"column 'y' holds text \('a', 'b'\), which cannot be regressed on"):
        targets(np.array(["a", "b"], object), "regression", "y")
    assert targets(np.arange(101.0), "classification", "age").outputs == 101
    assert targets(np.array([2.0, 1.0, 2.0]), None, "y").classes == ("1", "2")


def test_rows_are_held_out_in_every_group_and_the_seed_decides_which():
    groups = torch.arange(4).repeat(50)
    train, test = held_out(groups, 0.2, 0)
    assert torch.bincount(groups[test]).tolist() == [10] * 4
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(200))
    assert not torch.equal(test, held_out(groups, 0.2, 1)[1])
    assert torch.equal(test, held_out(groups, 0.2, 0)[1])
    assert held_out(groups, 0.0, 0)[1] is None
    with pytest.raises(DataError, match=r"0\.2 of 4 rows in 4 groups .* holds out no row"):
        held_out(torch.arange(4), 0.2, 0)


def test_sparse_rows_are_filled_in_and_their_padding_goes():
    batch = {
        "x": torch.tensor([[5.0, 7.0, 0.0], [1.0, 0.0, 0.0]]),
        "slots": torch.tensor([[4, 1, 0], [2, 0, 0]], dtype=torch.int16),
        "y": torch.tensor([0, 1]),
    }
    found = Sparse(4)(batch)
    assert found["x"].tolist() == [[7, 0, 0, 5], [0, 1, 0, 0]]
    assert set(found) == {"x", "y"}


def test_categories_stand_behind_the_numbers_and_an_unknown_one_is_all_zeros():
    batch = {"x": torch.tensor([[0.5], [1.5]]), "slots": torch.tensor([[1, 4], [0, 3]], dtype=torch.int16)}
    assert OneHot(4)(batch)["x"].tolist() == [[0.5, 1, 0, 0, 1], [1.5, 0, 0, 1, 0]]


@pytest.mark.parametrize("decode", [Sparse(6), OneHot(6)])
def test_a_decoder_travels_and_does_the_same_under_vmap(decode):
    generator = torch.Generator().manual_seed(0)
    stacked = {
        "x": torch.randn(3, 2, 4, generator=generator),
        "slots": torch.stack([torch.randperm(7, generator=generator)[:4] for _ in range(6)]).reshape(3, 2, 4),
    }
    decode = pickle.loads(pickle.dumps(decode))
    looped = [decode({k: v[c] for k, v in stacked.items()})["x"] for c in range(3)]
    assert torch.equal(torch.vmap(decode)(stacked)["x"], torch.stack(looped))


def test_a_vocabulary_is_that_of_the_training_rows_by_frequency():
    words = Words()
    train = words.rows([["b", "a", "b"], ["c", "a", "b"]], 3)
    test = words.rows([["a", "new"]], 3)
    final, size = words.settle(train, 100)
    assert size == 5
    assert final[train].tolist() == [[2, 3, 2], [4, 3, 2]]
    assert final[test].tolist() == [[3, 1, 0]]  # a word that training does not know; padding
    assert words.settle(train, 4)[0][train].tolist() == [[2, 3, 2], [1, 3, 2]]  # room for two words
    assert words.settle(train, 100, ("<BOS>",))[0][train].tolist() == [[3, 4, 3], [5, 4, 3]]


def test_a_vocabulary_may_come_from_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("c 10\nzebra 7\na 3\n")
    words = Words()
    train = words.rows([["b", "a", "c"]], 3)
    final, size = words.settle(train, 100, listed=path)
    assert (final[train].tolist(), size) == ([[1, 4, 2]], 5)
    path.write_text("c\nc\n")
    with pytest.raises(DataError, match="lists 'c' twice"):
        read_words(path)


def test_tokens_take_as_few_bits_as_they_need_and_can_be_compared_with_their_number():
    assert compact(np.array([0, 126, -100]), 127).dtype == torch.int8
    assert compact(np.array([0, 127]), 128).dtype == torch.int16
    assert compact(np.array([0, 40_000]), 40_001).dtype == torch.int32


def test_nothing_here_unpickles():
    for path in sorted(safe_read.Path(safe_read.__file__).parent.glob("*.py")):
        text = path.read_text()
        assert "import pickle" not in text
        assert "allow_pickle" not in text


@pytest.mark.parametrize(
    "accident", [StopIteration(), MemoryError(), RecursionError("deep"), KeyError("x"), ValueError()]
)
def test_whatever_a_parser_raises_is_a_refusal_of_the_file(accident, tmp_path):
    def read(path: safe_read.Path, share: float = 0.1) -> Dataset:
        raise accident

    guarded = safe_read.at_the_door("mine", read)
    assert inspect.signature(guarded) == inspect.signature(read)  # the signature is the schema
    with pytest.raises(
        DataError, match=r"a\.mine: .*\. (Write or fetch it again|Use fewer or smaller examples)\.$"
    ) as e:
        guarded(path=tmp_path / "a.mine")
    assert e.value.__cause__ is accident


def test_a_bug_of_ours_is_not_called_damage(tmp_path):
    """libsvm's own reader is handed what it cannot be: a line of atoll raises, and the message says so."""
    guarded = safe_read.at_the_door("libsvm", inspect.unwrap(FILES["libsvm"]))
    with pytest.raises(UnforeseenError, match=r"atoll's reader failed on it \(\w+Error: .*; \w+\.py:\d+\)") as e:
        guarded(7)
    assert e.value.accident.ours
    again = pickle.loads(pickle.dumps(e.value))  # a sweep's worker sends it home
    assert (str(again), again.accident) == (str(e.value), e.value.accident)


def test_an_error_in_others_lines_is_a_file_that_is_damaged(tmp_path):
    def read(path: safe_read.Path) -> Dataset:
        raise KeyError(json.loads("{"))

    with pytest.raises(UnforeseenError, match=r"it is damaged, or something else \(JSONDecodeError") as e:
        safe_read.at_the_door("mine", read)(tmp_path)
    assert not e.value.accident.ours


def test_a_refusal_of_ours_goes_through_the_door_as_it_is(tmp_path):
    ours = DataError("a.csv: is empty. Give it rows.")

    def read(path: safe_read.Path) -> Dataset:
        raise ours

    with pytest.raises(DataError) as e:
        safe_read.at_the_door("mine", read)(tmp_path)
    assert e.value is ours


def test_every_format_has_the_same_door():
    assert all(inspect.unwrap(read) is not read for read in FILES.values())
