"""Text as numbers: words, vocabularies, alphabets, windows."""

import numpy as np
import pytest

from atoll.data.sources.windows import Texts, split_texts, stored
from atoll.data.text import PAD, UNKNOWN, Alphabet, Corpus, Vocabulary, characters, smallest, split_words
from atoll.errors import DataError


def test_words_are_lower_case_with_marks_by_themselves():
    assert split_words("Don't PANIC, it's 42!") == ["don't", "panic", ",", "it's", "42", "!"]
    assert split_words("  \n\t ") == []
    assert split_words("naïve café") == [
        "na",
        "ï",
        "ve",
        "caf",
        "é",
    ]  # other letters are marks: the vocabulary stays small


def test_a_vocabulary_is_the_most_common_words_of_the_training_texts_alone():
    corpus = Corpus.read(["b b a", "c c c c"])
    vocabulary = Vocabulary.most_common(corpus, np.array([True, False]), 10)
    assert vocabulary.tokens == ("a", "b")
    assert len(vocabulary) == 4
    assert vocabulary.padded(corpus, 4).tolist() == [[3, 3, 2, PAD], [UNKNOWN] * 4]
    assert Vocabulary.most_common(corpus, np.array([True, True]), 4).tokens == ("b", "c")


def test_ties_are_broken_by_the_alphabet_so_that_a_vocabulary_does_not_depend_on_the_order_of_texts():
    texts = ["pear plum", "apple fig", "date"]
    every = np.ones(3, np.bool_)
    found = {Vocabulary.most_common(Corpus.read(t), every, 4).tokens for t in (texts, texts[::-1])}
    assert found == {("apple", "date")}


def test_texts_are_cut_or_padded_to_one_length():
    corpus = Corpus.read(["a b c d", "", "a"])
    vocabulary = Vocabulary.most_common(corpus, np.ones(3, np.bool_), 6)
    assert vocabulary.padded(corpus, 2).tolist() == [[2, 3], [0, 0], [2, 0]]
    assert vocabulary.padded(corpus, 6)[0].tolist() == [2, 3, 4, 5, 0, 0]


def test_a_vocabulary_without_room_for_a_word_is_refused():
    with pytest.raises(DataError, match="must be 3 or more"):
        Vocabulary.most_common(Corpus.read(["a"]), np.ones(1, np.bool_), 2)


def test_numbers_take_the_fewest_bytes_that_hold_them_and_their_count():
    assert [smallest(n) for n in (127, 128, 32_767, 32_768)] == [np.int8, np.int16, np.int16, np.int32]


def test_an_alphabet_knows_its_characters_and_nothing_else():
    alphabet = Alphabet.most_common(characters("banana é"))
    assert alphabet.characters == " abné"
    assert alphabet.encoded(characters("ban z")).tolist() == [3, 2, 4, 1, 0]
    assert Alphabet.most_common(characters("aabbbc"), 3).characters == "ab"
    assert Alphabet("").encoded(characters("x")).tolist() == [0]


def naive(texts, window, stride, targets):
    rows = []
    for c, text in enumerate(texts):
        for i in range(0, len(text), stride):
            if targets == "last" and i + window < len(text):
                rows.append((text[i : i + window], text[i + window], c))
            if targets == "all" and i + 1 < len(text):
                x, y = text[i : i + window], text[i + 1 : i + 1 + window]
                rows.append((x + [0] * (window - len(x)), y + [-100] * (window - len(y)), c))
    return rows


@pytest.mark.parametrize("targets", ["last", "all"])
@pytest.mark.parametrize(("window", "stride"), [(3, 1), (3, 3), (4, 2), (2, 5), (50, 1)])
def test_windows_are_those_of_a_plain_loop_and_never_cross_clients(targets, window, stride):
    texts = [list(range(1, 12)), [], [20], [30, 31], [40, 41, 42], [50, 51, 52, 53], list(range(60, 81))]
    joined = Texts.joined([np.array(t, np.int8) for t in texts])
    columns, owner = joined.rows(window, stride, targets)
    wanted = naive(texts, window, stride, targets)
    assert columns["x"].tolist() == [w[0] for w in wanted]
    assert columns["y"].tolist() == [w[1] for w in wanted]
    assert owner.tolist() == [w[2] for w in wanted]


def test_what_is_tested_comes_after_what_is_learned():
    texts = [np.arange(10), np.arange(3), np.arange(1)]
    train, test = split_texts(texts)
    assert [len(t) for t in train] == [8, 2, 1]
    for a, b, whole in zip(train, test, texts, strict=True):
        assert np.concatenate([a, b]).tolist() == whole.tolist()
    kept = stored(train, test)
    assert kept["train_offsets"].tolist() == [0, 8, 10, 11]
    assert kept["test"].tolist() == [8, 9, 2]
