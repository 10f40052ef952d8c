"""LEAF's JSON: users, their examples, and the five sets that come in it."""

import gzip
import json
import string

import numpy as np
import pytest
import torch
from PIL import Image

import atoll
from atoll.data.formats import FILES
from atoll.data.formats.leaf_shakespeare import ALPHABET
from atoll.errors import DataError


def leaf(users, groups=None, **changes):
    """What LEAF's scripts write, of {user: (x, y)}."""
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {u: {"x": x, "y": y} for u, (x, y) in users.items()},
    }
    return {**content, **({"hierarchies": groups} if groups else {}), **changes}


def write(folder, train, test=None):
    """Each part in as many files as it has dicts."""
    for part, contents in (("train", train), ("test", test or [])):
        for i, content in enumerate(contents):
            path = folder / part / f"all_data_{i}_niid_{part}_9.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
    return folder


def numbers(*rows):
    return [[float(v), 0.0] for v in rows]


def test_several_files_and_the_same_users_in_both_parts_are_matched(tmp_path):
    path = write(
        tmp_path,
        [leaf({"f2": (numbers(1, 2), [0, 1]), "f9": (numbers(3), [1])}), leaf({"f1": (numbers(4), [2])})],
        [leaf({"f9": (numbers(5), [0])}), leaf({"f1": (numbers(6), [2]), "f3": (numbers(7), [1])})],
    )
    d = FILES["leaf"](path=path)
    assert d.train["x"][:, 0].tolist() == [1, 2, 3, 4]
    assert d.train["y"].tolist() == [0, 1, 1, 2]
    assert d.keys["user"].tolist() == [1, 1, 2, 0]  # f1, f2, f9
    assert (d.test["x"][:, 0].tolist(), d.test["user"].tolist()) == ([5, 6, 7], [2, 0, 3])  # f3 comes behind
    assert (d.outputs, d.inputs) == (3, (2,))


def test_a_folder_around_the_data_and_packed_files_are_found(tmp_path):
    content = json.dumps(leaf({"a": (numbers(1, 2), [0, 1]), "b": (numbers(3, 4), [0, 1])}))
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    (folder / "x.json.gz").write_bytes(gzip.compress(content.encode()))
    assert FILES["leaf"](path=tmp_path, test_share=0.0).examples == 4


def test_without_a_test_folder_a_share_of_every_user_is_held_out(tmp_path):
    users = {f"u{i}": (numbers(*range(10)), [0, 1] * 5) for i in range(4)}
    (tmp_path / "all.json").write_text(json.dumps(leaf(users)))
    d = FILES["leaf"](path=tmp_path / "all.json", test_share=0.2)
    assert torch.bincount(d.keys["user"]).tolist() == [8] * 4
    assert torch.bincount(d.test["user"]).tolist() == [2] * 4
    assert FILES["leaf"](path=tmp_path, test_share=0.2).digest() == d.digest()  # the folder has this one file


def test_users_that_leaf_dropped_are_not_there(tmp_path):
    content = leaf({"a": (numbers(1, 2), [0, 1])})
    content["user_data"]["dropped"] = {"x": [], "y": []}  # LEAF's split by sample leaves these behind
    content["users"].append("empty")
    content["num_samples"].append(0)
    content["user_data"]["empty"] = {"x": [], "y": []}
    d = FILES["leaf"](path=write(tmp_path, [content]), test_share=0.0)
    assert d.keys["user"].tolist() == [0, 0]


def test_numbers_may_have_a_shape_and_targets_a_fraction(tmp_path):
    path = write(tmp_path, [leaf({"a": ([[1.0, 2, 3, 4], [5, 6, 7, 8]], [0.5, 1.5])})])
    d = FILES["leaf"](path=path, shape=(1, 2, 2), test_share=0.0)
    assert d.train["x"][0].tolist() == [[[1, 2], [3, 4]]]
    assert (d.kind, d.train["y"].tolist()) == ("regression", [[0.5], [1.5]])
    with pytest.raises(DataError, match=r"data\.shape: \[3, 3\] does not hold the 4 numbers of an example"):
        FILES["leaf"](path=path, shape=(3, 3), test_share=0.0)


ONE = {"a": (numbers(1, 2), [0, 1])}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], r"is not LEAF's JSON, which has users, num_samples, user_data"),
        ({"users": ["a"]}, r"is not LEAF's JSON"),
        (leaf(ONE, num_samples=[2, 2]), r"has 1 users and 2 num_samples"),
        (leaf(ONE, num_samples=[3]), r"user 'a' has 2 examples, and num_samples says 3"),
        (leaf(ONE, user_data={}), r"lists user 'a', who has no user_data"),
        (leaf(ONE, user_data={"a": {"y": [0, 1]}}), r"user 'a': has no lists x and y"),
        (leaf(ONE, user_data={"a": {"x": numbers(1), "y": [0, 1]}}), r"user 'a': has 1 x and 2 y"),
        (leaf(ONE, user_data={"a": {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}}), r"is not an even list of numbers"),
        (leaf(ONE, user_data={"a": {"x": [["?"], ["!"]], "y": [0, 1]}}), r"is not an even list of numbers"),
        (leaf({"a": (numbers(float("nan"), 2), [0, 1])}), r"user 'a': has numbers that are not finite"),
        (leaf({"a": (numbers(1), [0]), "b": ([[1.0]], [1])}), r"x has rows of different shapes"),
        (leaf({"a": (numbers(1), [0]), "b": (numbers(1), [[1]])}), r"y has rows of different shapes"),
        (leaf({}), r"has no examples"),
        ({**leaf(ONE), "users": 1}, r"users is no list of names"),
        ({**leaf(ONE), "users": [["a"]]}, r"users is no list of names"),
        (leaf(ONE, num_samples=2), r"num_samples no list"),
        (leaf(ONE, user_data=["a"]), r"user_data no table by name"),
        (leaf(ONE, user_data={"a": {"x": numbers(1), "y": 1}}), r"user 'a': has no lists x and y"),
        (leaf(ONE, groups=["g"], hierarchies=7, num_samples=[3]), r"num_samples says 3"),
    ],
)
def test_json_that_is_not_leafs_is_refused_with_file_and_user(content, message, tmp_path):
    with pytest.raises(DataError, match=message):
        FILES["leaf"](path=write(tmp_path, [content]), test_share=0.0)


def test_a_file_that_is_cut_short_and_a_user_in_two_files_are_refused(tmp_path):
    path = write(tmp_path, [leaf(ONE), leaf(ONE)])
    with pytest.raises(DataError, match=r"train: has user 'a' twice"):
        FILES["leaf"](path=path)
    file = next((tmp_path / "train").iterdir())
    file.write_text(file.read_text()[:40])
    with pytest.raises(DataError, match=r"is no JSON, or cut short \(line 1, column"):
        FILES["leaf"](path=path)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"has no \.json files\. Set path to LEAF's data/ folder"):
        FILES["leaf"](path=tmp_path / "none")


def characters(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 784), dtype=np.uint8)


def test_femnist_is_kept_in_bytes_without_loss(tmp_path):
    x = characters(3)
    parts = [leaf({"f0001_41": ((x[:2] / 255).tolist(), [0, 61]), "f0002_03": ((x[2:] / 255).tolist(), [36])})]
    d = FILES["femnist"](path=write(tmp_path, parts, parts))
    assert d.train["x"].dtype == torch.uint8
    assert np.array_equal(d.train["x"], x.reshape(3, 1, 28, 28))
    assert torch.allclose(d.decode(d.train)["x"], torch.from_numpy(x / 255).float().reshape(3, 1, 28, 28))
    assert (d.train["y"].tolist(), d.keys["user"].tolist(), d.outputs) == ([0, 61, 36], [0, 0, 1], 62)
    assert d.test["user"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (characters(1)[:, :783] / 255, [0], r"user 'u': an image has shape \(783,\)"),
        (characters(1) / 255 - 0.5, [0], r"not multiples of 1/255 from 0 to 1\. .* use name = 'leaf', shape"),
        (characters(1) * 1.0, [0], r"not multiples of 1/255 from 0 to 1"),
        (characters(1) / 255, [62], r"has labels that are none of 0\.\.61"),
        (characters(1) / 255, [0.5], r"has labels that are none of 0\.\.61"),
    ],
)
def test_femnist_that_is_not_femnist_is_refused(x, y, message, tmp_path):
    with pytest.raises(DataError, match=message):
        FILES["femnist"](path=write(tmp_path, [leaf({"u": (x.tolist(), y)})]), test_share=0.0)


def write_celeba(tmp_path):
    folder = tmp_path / "img_align_celeba"
    folder.mkdir()
    for i in range(1, 5):
        Image.fromarray(np.full((218, 178, 3), 50 * i, np.uint8)).save(folder / f"00000{i}.png")
    names = [f"00000{i}.png" for i in range(1, 5)]
    train = [leaf({"7": (names[:2], [1.0, 0.0]), "12": (names[2:3], [1.0])})]
    path = write(tmp_path, train, [leaf({"12": (names[3:], [0.0])})])
    marks = ["-1  1 -1", " 1 -1 -1", " 1  1  1", "-1 -1  1"]
    lines = [f"{n} {m}" for n, m in zip(names, marks, strict=True)]
    attributes = tmp_path / "list_attr_celeba.txt"
    attributes.write_text("4\nBald Smiling Young \n" + "\n".join(lines) + "\n")
    return path, folder, attributes


def test_celeba_reads_the_images_that_leaf_names(tmp_path):
    path, folder, attributes = write_celeba(tmp_path)
    d = FILES["celeba"](path=path, images=folder)
    assert (d.inputs, d.outputs, d.train["x"].dtype) == ((3, 84, 84), 2, torch.uint8)
    assert d.train["x"][:, 0, 0, 0].tolist() == [50, 100, 150]
    assert (d.train["y"].tolist(), d.keys["user"].tolist()) == ([1, 0, 1], [0, 0, 1])  # 7 before 12
    assert d.test["user"].tolist() == [1]
    same = FILES["celeba"](path=path, images=folder, attributes=attributes, size=(20, 10))
    assert (same.train["y"].tolist(), same.inputs) == ([1, 0, 1], (3, 20, 10))
    assert FILES["celeba"](path=path, images=folder, attributes=attributes, attribute="Young").test["y"].tolist() == [1]


def test_celeba_files_that_do_not_belong_together_are_refused(tmp_path):
    path, folder, attributes = write_celeba(tmp_path)
    with pytest.raises(DataError, match=r"data\.attribute: .* has no 'Smilling'\. Did you mean 'Smiling'\?"):
        FILES["celeba"](path=path, images=folder, attributes=attributes, attribute="Smilling")
    with pytest.raises(DataError, match=r"data\.attributes: is missing, and LEAF's files do not have 'Bald'"):
        FILES["celeba"](path=path, images=folder, attribute="Bald")
    whole = attributes.read_text()
    for text, message in (
        (whole.replace("4\n", "5\n", 1), r"says 5 images and lists 4"),
        (whole.replace("-1  1 -1", "-1  1"), r"line 3 has not 3 marks of -1 or 1"),
        (whole.partition("\n")[2], r"does not begin with a count"),
        (whole.replace("000003", "000009"), r"image '000003\.png' is not in the file of attributes"),
    ):
        attributes.write_text(text)
        with pytest.raises(DataError, match=message):
            FILES["celeba"](path=path, images=folder, attributes=attributes)
    (folder / "000002.png").unlink()
    with pytest.raises(DataError, match=r"has no 000002\.png\. Set images to the folder"):
        FILES["celeba"](path=path, images=folder)


def tweet(text, user="me"):
    return ["14678", "Mon Apr 06", "NO_QUERY", user, text, "training"]


def test_sent140_keeps_the_first_words_of_a_tweet(tmp_path):
    train = [leaf({"me": ([tweet("Good good day!"), tweet("bad day")], [1, 0]), "you": ([tweet("it's so bad.")], [0])})]
    test = [leaf({"you": ([tweet("good night")], [1])})]
    d = FILES["sent140"](path=write(tmp_path, train, test), length=4)
    # by frequency, then by the alphabet: bad day good ! . it's so
    assert d.train["x"].tolist() == [[4, 4, 3, 5], [2, 3, 0, 0], [7, 8, 2, 6]]
    assert d.test["x"].tolist() == [[4, 1, 0, 0]]  # "night" is not in the training tweets
    assert (d.train["y"].tolist(), d.keys["user"].tolist(), d.vocabulary) == ([1, 0, 0], [0, 0, 1], 9)
    assert d.decode(d.train)["x"].dtype == torch.int64
    assert d.train["x"].dtype == torch.int8
    cased = FILES["sent140"](path=tmp_path, length=4, lower=False)
    assert cased.train["x"][0].tolist() != d.train["x"][0].tolist()
    (tmp_path / "words.txt").write_text("day\ngood\n")
    listed = FILES["sent140"](path=tmp_path, length=4, words=tmp_path / "words.txt")
    assert listed.train["x"][0].tolist() == [3, 3, 2, 1]


def test_sent140_rows_that_are_no_tweets_are_refused(tmp_path):
    for x in (["just text"], [["id", "date"]], [[1, 2, 3, 4, 5]]):
        with pytest.raises(DataError, match=r"a tweet is not \[id, date, query, user, text"):
            FILES["sent140"](path=write(tmp_path, [leaf({"u": (x, [1])})]), test_share=0.0)


def comment(text):
    """LEAF's preprocess.py: begin, words, end; padded to tens; the targets one further."""
    words = text.split()
    x, y = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", "<PAD>"]
    room = -len(x) % 10
    rows = [[*x, *["<PAD>"] * room], [*y, *["<PAD>"] * room], [*[1.0] * len(x), *[0.0] * room]]
    x, y, count = ([row[i : i + 10] for i in range(0, len(row), 10)] for row in rows)
    return x, {"subreddit": "s", "created_utc": 1, "score": 2, "target_tokens": y, "count_tokens": count}


def test_reddit_is_read_one_token_ahead(tmp_path):
    (x1, y1), (x2, y2) = comment("a b a c"), comment(" ".join(["a"] * 12))
    train = [leaf({"1": ([x1, x2], [y1, y2])}, num_samples=[5])]  # LEAF counts the comments of all parts
    x3, y3 = comment("z a")
    d = FILES["reddit"](path=write(tmp_path, train, [leaf({"1": ([x3], [y3])}, num_samples=[5])]))
    # a, <BOS>, <EOS>, b, c by frequency and alphabet
    assert d.train["x"].tolist() == [
        [3, 2, 5, 2, 6, 4, 0, 0, 0, 0],
        [3, *[2] * 9],
        [2, 2, 2, 4, 0, 0, 0, 0, 0, 0],
    ]
    assert d.train["y"].tolist() == [
        [2, 5, 2, 6, 4, *[-100] * 5],
        [2] * 10,
        [2, 2, 4, *[-100] * 7],
    ]
    assert d.test["x"].tolist() == [[3, 1, 2, 4, 0, 0, 0, 0, 0, 0]]
    assert d.test["y"].tolist() == [[1, 2, 4, *[-100] * 7]]
    assert (d.kind, d.outputs, d.vocabulary, d.keys["user"].tolist()) == ("next_token", 7, 7, [0, 0, 0])
    assert d.decode(d.train)["y"].dtype == torch.int64
    assert FILES["reddit"](path=tmp_path, vocabulary=4).outputs == 4


def test_reddit_that_is_not_in_sequences_of_ten_is_refused(tmp_path):
    x, y = comment("a b")
    unlisted = [([[7]], [y]), ([[[["a"]] * 10]], [y]), ([x], [{**y, "count_tokens": [["a"] * 10]}])]
    for bad in (([x], [{}]), ([[r[:9] for r in x]], [y]), ([[*x, *x]], [y]), ([1], [y]), *unlisted):
        message = r"user '1': (a comment is not|has sequences that are not 10|a sequence is no list of tokens)"
        with pytest.raises(DataError, match=message):
            FILES["reddit"](path=write(tmp_path, [leaf({"1": bad})]), test_share=0.0)


def windows(text):
    padded = " " * 80 + text
    return [padded[i : i + 80] for i in range(len(text))], list(text)


def test_shakespeare_predicts_the_character_behind_the_window(tmp_path):
    assert len(ALPHABET) == 80
    train = [leaf({"HAMLET": windows("To be,"), "IAGO": windows("I am")}, groups=["Hamlet", "Othello"])]
    path = write(tmp_path, train, [leaf({"IAGO": windows("not")})])
    d = FILES["leaf_shakespeare"](path=path)
    assert (d.kind, d.inputs, d.outputs, d.vocabulary) == ("classification", (80,), 80, 80)
    assert "".join(ALPHABET[i] for i in d.train["y"]) == "To be,I am"
    assert "".join(ALPHABET[i] for i in d.train["x"][4]).strip() == "To b"
    assert d.train["x"].dtype == torch.int8
    assert {k: v.tolist() for k, v in d.keys.items()} == {"user": [0] * 6 + [1] * 4, "play": [0] * 6 + [1] * 4}
    assert d.client_names == {"user": ("HAMLET", "IAGO"), "play": ("Hamlet", "Othello")}
    assert d.test["user"].tolist() == [1, 1, 1]
    every = FILES["leaf_shakespeare"](path=path, targets="all")
    assert every.kind == "next_token"
    assert torch.equal(every.train["y"][:, :-1], every.train["x"][:, 1:])
    assert torch.equal(every.train["y"][:, -1].long(), d.train["y"])


def test_the_plays_are_not_guessed_where_leaf_has_lost_them(tmp_path):
    train = [leaf({"HAMLET": windows("To be")}, groups=["Hamlet", "Othello"])]  # more hierarchies than users
    assert set(FILES["leaf_shakespeare"](path=write(tmp_path, train), test_share=0.0).keys) == {"user"}


def test_a_character_outside_leafs_alphabet_is_refused_or_numbered(tmp_path):
    path = write(tmp_path, [leaf({"a": windows("café"), "b": windows(string.ascii_letters)})])
    with pytest.raises(DataError, match=r"user 'a': the character 'é' is not among LEAF's 80\. Set unknown = 'extra'"):
        FILES["leaf_shakespeare"](path=path, test_share=0.0)
    d = FILES["leaf_shakespeare"](path=path, test_share=0.0, unknown="extra")
    assert (d.outputs, int(d.train["y"][3])) == (81, 80)
    with pytest.raises(DataError, match="not every x has 80 characters and every y one"):
        FILES["leaf_shakespeare"](path=write(tmp_path, [leaf({"a": (["short"], ["x"])})]), test_share=0.0)


def test_leafs_users_are_the_clients_of_a_run(tmp_path):
    users = {f"u{i}": ([tweet("good day"), tweet("bad night")] * 4, [1, 0] * 4) for i in range(3)}
    write(tmp_path, [leaf(users)], [leaf({"u0": ([tweet("good night good"), tweet("bad day bad")], [1, 0])})])
    run = atoll.run(
        {
            "rounds": 3,
            "data": {"name": "sent140", "path": str(tmp_path), "length": 4},
            "algorithm": {"name": "fedavg", "lr": 0.5},
            "engine": "loop",
            "task": {"model": {"name": "sentiment_lstm", "vocabulary": 10, "embedding": 8, "hidden": 8}},
        },
        out=tmp_path / "run",
        device="cpu",
    )
    assert run.history[-1]["cohort"]["ids"] == [0, 1, 2]
    assert 0 <= run.final["accuracy"] <= 1
