"""Fetching: what is tried in which order, what is refused, what is left in the cache. Needs no network."""

import errno
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from atoll.data.fetch import (
    Download,
    Offer,
    Package,
    ParsedColumns,
    Recipe,
    cached_state,
    fetch,
    packages,
    parsed_columns,
)
from atoll.data.fetch import cache as cache_folder
from atoll.data.fetch.files import inside
from atoll.errors import DataError

HELLO = {"data/hello.txt": b"hello", "data/more.txt": b"more"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "cache"))
    monkeypatch.delenv("ATOLL_OFFLINE", raising=False)
    return tmp_path / "cache"


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def tarred(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if not isinstance(content, tarfile.TarInfo):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(b"" if isinstance(content, tarfile.TarInfo) else content))
    return out.getvalue()


def download(content, origin, file="thing-1.0-py3-none-any.whl", root="data/"):
    return Download(file, hashlib.sha256(content).hexdigest(), len(content) / 1e6, origin, root)


def recipe(*downloads, needs=("hello.txt",), name="thing"):
    return Recipe(name, tuple(Offer((d,), needs) for d in downloads), "free", "Nobody (2020)")


WHEEL = zipped(HELLO)
PIP, NPM = Package("pip", "thing==1.0"), Package("npm", "@lab/thing@1.0")


class Client:
    """Stands in for pip and npm: puts a file where they would, and remembers what it was asked."""

    def __init__(self, content=WHEEL, file="thing-1.0-py3-none-any.whl", status=0, said=""):
        self.content, self.file, self.status, self.said, self.asked = content, file, status, said, []

    def __call__(self, command, folder, more):
        self.asked.append((command, more))
        if self.content is not None:
            (folder / self.file).write_bytes(self.content)
        return self.status, self.said


@pytest.fixture
def client(monkeypatch):
    def use(**options):
        found = Client(**options)
        monkeypatch.setattr(packages, "call", found)
        monkeypatch.setattr(packages.shutil, "which", lambda name: f"/usr/bin/{name}")
        return found

    return use


def clean(cache):
    """Nothing half done is in the cache."""
    left = [p for p in cache.rglob("*") if p.is_file() and p.parent.name != "locks"]
    return [p for p in left if ".making" in str(p) or p.parent.name == "partial"] == []


def files_in(cache):
    return sorted(p.name for p in (cache / "files").glob("*"))


def test_a_package_is_fetched_verified_kept_and_read(client, cache):
    asked = client()
    found = fetch(recipe(download(WHEEL, PIP)))
    assert found.read("hello.txt") == b"hello"
    assert found.every(("hello.txt", "more.txt")) == {"hello.txt": b"hello", "more.txt": b"more"}
    assert files_in(cache) == [hashlib.sha256(WHEEL).hexdigest()[:12] + "-thing-1.0-py3-none-any.whl"]
    assert clean(cache)
    fetch(recipe(download(WHEEL, PIP)))
    assert len(asked.asked) == 1  # the second time it was there


def test_pip_is_asked_for_one_pinned_file_and_to_install_nothing(client):
    asked = client()
    fetch(recipe(download(WHEEL, Package("pip", "thing==1.0", ("--python-version", "3.7")))))
    command, more = asked.asked[0]
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert "--require-hashes" in command
    assert command[command.index("--python-version") + 1] == "3.7"
    assert not {"install", "--index-url", "-i"} & set(command)
    assert more["ATOLL_RELEASE"] == "thing==1.0"


def test_npm_packs_and_runs_no_scripts(client):
    content = tarred({"package/data/hello.txt": b"hello"})
    asked = client(content=content, file="lab-thing-1.0.tgz")
    one = download(content, NPM, "lab-thing-1.0.tgz", "package/data/")
    assert fetch(recipe(one)).read("hello.txt") == b"hello"
    command = asked.asked[0][0]
    assert command[:3] == ["/usr/bin/npm", "pack", "@lab/thing@1.0"]
    assert "--ignore-scripts" in command


def test_a_client_that_is_not_there_is_said_so(monkeypatch):
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for package, words in ((PIP, "pip is not installed"), (NPM, "npm is not installed")):
        with pytest.raises(DataError, match=words):
            fetch(recipe(download(WHEEL, package)))


def test_a_source_release_is_fetched_by_the_real_pip_and_not_run(tmp_path, monkeypatch):
    trace = tmp_path / "ran"
    setup = f"from setuptools import setup\nopen({str(trace)!r}, 'w').close()\nsetup(name='thing', version='1.0')\n"
    content = tarred({"thing-1.0/setup.py": setup.encode(), "thing-1.0/data/hello.txt": b"hello"})
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "thing-1.0.tar.gz").write_bytes(content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    one = download(content, PIP, "thing-1.0.tar.gz", "thing-1.0/data/")
    assert fetch(recipe(one)).read("hello.txt") == b"hello"
    assert not trace.exists()


@pytest.mark.parametrize(
    "damaged",
    [WHEEL[:-7], WHEEL[:40] + b"X" + WHEEL[41:], b"", zipped({**HELLO, "data/hello.txt": b"jello"})],
    ids=["truncated", "corrupt", "empty", "tampered"],
)
def test_a_package_that_is_not_the_pinned_one_is_refused_and_the_cache_stays_clean(damaged, client, cache):
    client(content=damaged)
    with pytest.raises(DataError, match=r"pip package thing==1\.0: .*damaged or another version"):
        fetch(recipe(download(WHEEL, PIP)))
    assert files_in(cache) == []
    assert clean(cache)


def test_what_a_client_says_is_passed_on(client, cache):
    client(content=None, status=1, said="WARNING: x\nERROR: No matching distribution found for thing==1.0\n")
    with pytest.raises(DataError, match=r"pip ended with 1: ERROR: No matching distribution"):
        fetch(recipe(download(WHEEL, PIP)))
    client(content=b"x", file="other.whl")
    with pytest.raises(DataError, match=r"pip brought other\.whl, not thing"):
        fetch(recipe(download(WHEEL, PIP)))
    assert clean(cache)


def test_the_publisher_comes_before_the_package(tmp_path, client):
    asked = client()
    (tmp_path / "up.zip").write_bytes(WHEEL)
    published = download(WHEEL, (tmp_path / "up.zip").as_uri(), "up.zip")
    fetch(recipe(published, download(WHEEL, PIP)))
    assert asked.asked == []


def test_a_changed_file_at_the_publisher_is_refused_and_the_package_is_taken(tmp_path, client, cache):
    (tmp_path / "up.zip").write_bytes(WHEEL + b"!")
    asked = client()
    published = download(zipped({"data/hello.txt": b"x"}), (tmp_path / "up.zip").as_uri(), "up.zip")
    assert fetch(recipe(published, download(WHEEL, PIP))).read("hello.txt") == b"hello"
    assert len(asked.asked) == 1
    assert clean(cache)


def test_a_folder_of_the_user_comes_first_under_the_files_own_name(tmp_path, client, cache):
    asked = client()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thing-1.0-py3-none-any.whl").write_bytes(WHEEL)
    found = fetch(recipe(download(WHEEL, PIP)), mine)
    assert found.read("hello.txt") == b"hello"
    assert found.origin == f"the folder {mine}"
    assert asked.asked == []
    assert not (cache / "files").exists()


def test_a_folder_without_the_right_file_is_passed_over_and_left_alone(tmp_path, client):
    client()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thing-1.0-py3-none-any.whl").write_bytes(b"another")
    assert fetch(recipe(download(WHEEL, PIP)), mine).read("hello.txt") == b"hello"
    assert (mine / "thing-1.0-py3-none-any.whl").read_bytes() == b"another"


def test_every_source_that_was_tried_is_named_with_its_reason(tmp_path, client, cache):
    client(content=None, status=1, said="ERROR: no network")
    gone = download(WHEEL, (tmp_path / "gone.zip").as_uri(), "gone.zip")
    with pytest.raises(DataError) as e:
        fetch(recipe(gone, download(WHEEL, PIP)), tmp_path / "nowhere")
    lines = str(e.value).splitlines()
    assert lines[0] == "data 'thing': no source worked. Tried:"
    assert lines[1].startswith(f"  the folder {tmp_path / 'nowhere'}: gone.zip is not there; thing-1.0")
    assert lines[2] == f"  the cache {cache}: does not have it"
    assert lines[3].startswith(f"  {gone.origin}: ")
    assert "No such file" in lines[3]
    assert lines[4] == "  pip package thing==1.0: pip ended with 1: ERROR: no network"
    assert lines[5].endswith('into a folder yourself and name it: data.folder = "..."')


def test_offline_asks_nobody_but_uses_what_is_here(client, monkeypatch):
    asked = client()
    one = recipe(download(WHEEL, "https://example.org/up.zip", "up.zip"), download(WHEEL, PIP))
    monkeypatch.setenv("ATOLL_OFFLINE", "1")
    with pytest.raises(DataError, match=r"https://example\.org/up\.zip: ATOLL_OFFLINE is set"):
        fetch(one)
    assert asked.asked == []
    monkeypatch.setenv("ATOLL_OFFLINE", "0")
    fetch(recipe(download(WHEEL, PIP)))
    monkeypatch.setenv("ATOLL_OFFLINE", "1")
    assert fetch(one).read("hello.txt") == b"hello"


def test_a_file_that_went_bad_in_the_cache_is_fetched_again(client, cache):
    asked = client()
    one = recipe(download(WHEEL, PIP))
    fetch(one)
    (kept_file,) = (cache / "files").iterdir()
    kept_file.write_bytes(WHEEL[:-1])
    assert fetch(one).read("hello.txt") == b"hello"
    assert len(asked.asked) == 2


class Server:
    """A publisher on this machine: sends `content`, at most `limit` bytes of it at a time."""

    def __init__(self, content, limit=None, ranges=True):
        self.seen, outer = [], self
        self.content, self.limit, self.ranges = content, limit, ranges

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                wanted = self.headers.get("Range")
                outer.seen.append(wanted)
                if self.path == "/gone":
                    return self.send_error(404)
                start = int(wanted[6:-1]) if wanted and outer.ranges else 0
                if start >= len(outer.content) > 0:
                    return self.send_error(416)
                body = outer.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: outer.limit])
                self.close_connection = True
                return None

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def address(self, path="/up.bin"):
        return f"http://127.0.0.1:{self.http.server_port}{path}"


@pytest.fixture
def server():
    made = []

    def start(*args, **options):
        made.append(Server(*args, **options))
        return made[-1]

    yield start
    for one in made:
        one.http.shutdown()
        one.http.server_close()


LONG = bytes(range(256)) * 2000


def test_a_download_that_was_cut_off_goes_on_where_it_stopped(server, cache):
    up = server(LONG, limit=300_000)
    one = recipe(download(LONG, up.address(), "up.bin", ""), needs=("up.bin",))
    with pytest.raises(DataError, match=r"broke off after 300,000 of 512,000 bytes"):
        fetch(one)
    assert files_in(cache) == []  # a part is never among the files
    up.limit = None
    assert fetch(one).read("up.bin") == LONG
    assert up.seen == [None, "bytes=300000-"]
    assert clean(cache)


def test_a_server_that_cannot_resume_starts_again(server):
    up = server(LONG, limit=1000, ranges=False)
    one = recipe(download(LONG, up.address(), "up.bin", ""), needs=("up.bin",))
    with pytest.raises(DataError, match="broke off"):
        fetch(one)
    up.limit = None
    assert fetch(one).read("up.bin") == LONG


@pytest.mark.parametrize("left", [b"not its beginning", LONG + b"more"], ids=["another", "longer"])
def test_a_part_of_another_file_is_thrown_away_and_the_whole_is_fetched(left, server, cache):
    up = server(LONG)
    one = download(LONG, up.address(), "up.bin", "")
    (cache / "partial").mkdir(parents=True)
    (cache / "partial" / one.kept_as).write_bytes(left)
    assert fetch(recipe(one, needs=("up.bin",))).read("up.bin") == LONG
    assert up.seen == [f"bytes={len(left)}-", None]


def test_a_changed_download_is_refused_after_one_try_and_nothing_is_left(server, cache):
    up = server(LONG[:-1] + b"?")
    with pytest.raises(DataError, match="damaged or another version"):
        fetch(recipe(download(LONG, up.address(), "up.bin", ""), needs=("up.bin",)))
    assert up.seen == [None]
    assert clean(cache)
    with pytest.raises(DataError, match=r"answered 404"):
        fetch(recipe(download(LONG, up.address("/gone"), "up.bin", ""), needs=("up.bin",)))


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/etc/evil.txt", "data/../../evil.txt", "data\\..\\evil.txt", "C:/evil"]
)
def test_a_name_that_climbs_out_of_its_archive_is_refused(name, client, tmp_path):
    with pytest.raises(DataError, match="points outside its archive"):
        inside(name, "data/")
    for content, file in ((zipped({name: b"x", **HELLO}), "a.zip"), (tarred({name: b"x", **HELLO}), "a.tar.gz")):
        client(content=content, file=file)
        with pytest.raises(DataError, match="points outside its archive"):
            fetch(recipe(download(content, PIP, file))).read("hello.txt")
    assert not list(tmp_path.rglob("*evil*"))


def test_links_and_devices_in_an_archive_are_passed_over(client):
    link = tarfile.TarInfo("data/hello.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    pipe = tarfile.TarInfo("data/pipe")
    pipe.type = tarfile.FIFOTYPE
    content = tarred({"a": link, "b": pipe})
    client(content=content, file="a.tar.gz")
    found = fetch(recipe(download(content, PIP, "a.tar.gz")))
    assert list(found.each(lambda n: True)) == []
    with pytest.raises(DataError, match=r"has no 'hello\.txt'"):
        found.read("hello.txt")


def test_an_archive_that_is_none_is_said_to_be_damaged(client):
    client(content=b"no archive", file="a.tar.gz")
    with pytest.raises(DataError, match=r"a\.tar\.gz: cannot be read .* Remove it"):
        fetch(recipe(download(b"no archive", PIP, "a.tar.gz"))).read("hello.txt")


def test_a_full_disk_is_refused_before_and_cleaned_up_after(client, cache, monkeypatch):
    client()
    one = recipe(download(WHEEL, PIP))
    with monkeypatch.context() as m:
        m.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        with pytest.raises(DataError, match=r"has 0 MB left and 0 MB are needed\. Make room"):
            fetch(one)

    def full(command, folder, more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packages, "call", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        fetch(one)
    assert files_in(cache) == []
    assert clean(cache)


def test_a_cache_that_cannot_be_written_is_said_so(client, tmp_path, monkeypatch):
    client()
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written .* Set ATOLL_DATA to a folder of yours"):
        fetch(recipe(download(WHEEL, PIP)))


def test_the_cache_is_in_the_users_cache_folder_unless_named(monkeypatch, tmp_path):
    monkeypatch.delenv("ATOLL_DATA")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "atoll" / "data"
    monkeypatch.setenv("ATOLL_DATA", "~/mine")
    assert cache_folder() == cache_folder().home() / "mine"


def test_what_a_killed_process_left_is_swept_up_after_a_day(client, cache):
    client()
    for name, hours in ((".making-old", 30), (".making-new", 1)):
        (cache / "files" / name).mkdir(parents=True)
        past = time.time() - hours * 3600
        os.utime(cache / "files" / name, (past, past))
    fetch(recipe(download(WHEEL, PIP)))
    assert ".making-old" not in files_in(cache)
    assert ".making-new" in files_in(cache)


TWO = """
import hashlib, os, sys, time
from pathlib import Path
from atoll.data.fetch import Download, Offer, Package, Recipe, fetch, packages
content, log = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
def slow(command, folder, more):
    with log.open("a") as file:
        file.write("asked ")
    (folder / "thing.whl").write_bytes(content[:50])
    time.sleep(1.0)
    (folder / "thing.whl").write_bytes(content)
    return 0, ""
packages.call = slow
sha = hashlib.sha256(content).hexdigest()
one = Recipe("thing", (Offer((Download("thing.whl", sha, 0.1, Package("pip", "thing==1.0"), "data/"),), ()),), "", "")
child = os.fork()
found = fetch(one).read("hello.txt").decode()
if child:
    os.waitpid(child, 0)
print(found, flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_of_two_processes_at_once_one_fetches_and_the_other_waits(tmp_path):
    (tmp_path / "thing").write_bytes(WHEEL)
    command = [sys.executable, "-c", TWO, str(tmp_path / "thing"), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "hello\nhello\n"
    assert (tmp_path / "log").read_text() == "asked "


def numbers(files, times=1):
    numbers.calls += 1
    text = files.read("hello.txt")
    return ParsedColumns({"x": np.frombuffer(text, np.uint8) * times, "none": np.empty(0, np.int16)}, {"words": ["é"]})


@pytest.fixture
def parsed(client):
    client()
    numbers.calls = 0
    return recipe(download(WHEEL, PIP))


def test_columns_are_parsed_once_and_then_mapped_from_the_disk(parsed, cache):
    first = parsed_columns(parsed, numbers)
    again = parsed_columns(parsed, numbers)
    assert numbers.calls == 1
    for found in (first, again):
        assert found["x"].tolist() == list(b"hello")
        assert found["none"].shape == (0,)
        assert found.notes == {"words": ["é"]}
    again["x"][0] = 0  # torch may write: only this process sees it
    assert parsed_columns(parsed, numbers)["x"].tolist() == list(b"hello")
    assert isinstance(again["x"], torch.Tensor)
    assert clean(cache)


def test_other_options_another_parser_and_other_files_make_other_columns(parsed, client):
    parsed_columns(parsed, numbers)
    assert parsed_columns(parsed, numbers, times=2)["x"].tolist() == [(2 * c) % 256 for c in b"hello"]
    parsed_columns(parsed, numbers, version=2)
    other = zipped({"data/hello.txt": b"other"})
    client(content=other)
    assert parsed_columns(recipe(download(other, PIP)), numbers)["x"].tolist() == list(b"other")
    assert numbers.calls == 4


@pytest.mark.parametrize("spoilt", ["x.npy", "manifest.json", "notes", "cut off", "gone"])
def test_columns_that_went_bad_are_made_again(spoilt, parsed, cache):
    parsed_columns(parsed, numbers)
    (folder,) = (cache / "columns").iterdir()
    if spoilt == "x.npy":
        raw = bytearray((folder / "x.npy").read_bytes())
        raw[-1] ^= 1
        (folder / "x.npy").write_bytes(raw)
    elif spoilt == "cut off":
        (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-2])
    elif spoilt == "gone":
        (folder / "x.npy").unlink()
    elif spoilt == "notes":
        text = (folder / "manifest.json").read_text().replace("words", "wordz")
        (folder / "manifest.json").write_text(text)
    else:
        (folder / "manifest.json").write_text("{")
    assert parsed_columns(parsed, numbers)["x"].tolist() == list(b"hello")
    assert parsed_columns(parsed, numbers).notes == {"words": ["é"]}
    assert numbers.calls == 2


def test_a_parser_that_fails_leaves_nothing_behind(parsed, cache):
    def broken(files):
        raise DataError("not a table")

    with pytest.raises(DataError, match="not a table"):
        parsed_columns(parsed, broken)
    assert not (cache / "columns").exists() or not list((cache / "columns").iterdir())


def test_the_cache_knows_what_it_has(parsed):
    assert cached_state(parsed) == ""
    fetch(parsed)
    assert cached_state(parsed) == "fetched"
    parsed_columns(parsed, numbers)
    assert cached_state(parsed) == "ready"


def test_columns_can_be_used_without_the_files_and_without_a_network(parsed, cache, monkeypatch):
    parsed_columns(parsed, numbers)
    shutil.rmtree(cache / "files")
    monkeypatch.setenv("ATOLL_OFFLINE", "1")
    assert parsed_columns(parsed, numbers)["x"].tolist() == list(b"hello")


def test_nothing_is_printed_where_nobody_looks(parsed, server, capfd):
    up = server(LONG)
    fetch(recipe(download(LONG, up.address(), "up.bin", ""), needs=("up.bin",)))
    parsed_columns(parsed, numbers)
    assert capfd.readouterr() == ("", "")
