"""What answers at a store's address may be anything: room, time and silence are kept."""

from __future__ import annotations

import itertools
import json
import os
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import (
    CorruptObject,
    ListingTooLong,
    ObjectMissing,
    StoreError,
    StoreRedirects,
    StoreUnavailable,
)
from dledger_pipeline.object_store import s3_objects, s3_requests, stored
from dledger_pipeline.object_store.store import Store
from e2e.cluster import pki
from tests.pipeline.hostile_http import (
    CREDENTIALS,
    Answered,
    Asked,
    HostileServer,
    hostile_server,
)

WORD = "hunter2"
FOREIGN = f"INTERNAL-ADMIN-PAGE password={WORD} of 10.0.0.7\nsecond line".encode()
EVERYTHING: list[Callable[[Store], object]] = [
    lambda store: store.get("a"),
    lambda store: store.size("a"),
    lambda store: store.put("a", b"x"),
    lambda store: store.create("a", b"x"),
    lambda store: store.replace("a", b"x", '"1"'),
    lambda store: store.delete("a"),
    lambda store: store.delete_old("a", 1e12),
    lambda store: [*store.list("g")],
    lambda store: [*store.folders()],
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileServer]:
    """A server that answers what the test says; nothing is tried for long."""
    monkeypatch.setattr(s3_requests, "_PAUSE_S", 0)
    with hostile_server() as made:
        yield made


def listing(*names: str, after: str = "", folders: tuple[str, ...] = ()) -> bytes:
    """Return a page as S3 answers it."""
    row = (
        "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        "<ETag>x</ETag><Size>1</Size></Contents>"
    )
    rows = [*map(row.format, names)]
    rows += [f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in folders]
    more = f"<NextContinuationToken>{after}</NextContinuationToken>" if after else ""
    truncated = f"<IsTruncated>{str(bool(after)).lower()}</IsTruncated>"
    return (
        "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
        f"{truncated}{more}{''.join(rows)}</ListBucketResult>"
    ).encode()


# --- listings ------------------------------------------------------------------------------------


def test_a_listing_is_read_page_by_page(server: HostileServer) -> None:
    """By the token of the page before; without what consoles make of folders."""
    pages = {
        None: listing("p/g/", "p/g/a&amp;b", "p/g/c", after="t/1+ "),
        "t%2F1%2B%20": listing("p/g/d"),
    }

    def rule(asked: Asked) -> Answered:
        query = dict(word.split("=") for word in asked.path.partition("?")[2].split("&"))
        return Answered(body=pages[query.get("continuation-token")])

    server.rule = rule

    assert [*server.store().list("g")] == ["g/c", "g/d"]
    assert {asked.headers["x-amz-security-token"] for asked in server.asked} == {"t"}


@pytest.mark.found
@pytest.mark.parametrize("sent", ["names", "folders"])
@pytest.mark.parametrize("asked_for", ["names", "folders"])
def test_a_listing_without_end_is_given_up_by_its_names(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, asked_for: str, sent: str
) -> None:
    """Found: A9. Before they fill the memory, and with what to do about it."""
    monkeypatch.setattr(stored, "MAX_NAMES", 2_500)

    def rule(asked: Asked) -> Answered:
        page = len(server.asked)
        after = f"t{page}" if page < 10 else ""
        found = tuple(f"p/g/{page}-{n}/" for n in range(1000))
        if sent == "folders" and asked_for == "folders":
            return Answered(body=listing(after=after, folders=found))
        return Answered(body=listing(*(name[:-1] for name in found), after=after))

    server.rule = rule
    store = server.store()

    with pytest.raises(ListingTooLong, match=r"over 2,500 names; give dledger a bucket or a path"):
        [*(store.folders() if asked_for == "folders" else store.list("g"))]

    assert len(server.asked) == 3


@pytest.mark.found
def test_a_directory_with_too_many_names_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of store has the bound."""
    monkeypatch.setattr(stored, "MAX_NAMES", 3)
    store = Store.open(f"file://{tmp_path}/store")
    for number in range(4):
        store.put(f"g{number}/data/a", b"")

    for ask in (store.list, store.folders):
        with pytest.raises(ListingTooLong, match="over 3 names"):
            [*ask()]


@pytest.mark.found
def test_a_listing_without_end_is_given_up_by_its_time(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: A9. Pages without a name count no names; how long a reader takes is its own."""
    monkeypatch.setattr(s3_objects, "LISTING_S", 10.0)
    now_s = _stop_clock(monkeypatch)

    def rule(_: Asked) -> Answered:
        now_s[0] += 3
        return Answered(body=listing(after="t" if len(server.asked) < 20 else ""))

    server.rule = rule

    with pytest.raises(ListingTooLong, match="took over 10 s"):
        [*server.store().list("g")]

    assert len(server.asked) <= 5


def _stop_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass only as the test says."""
    now_s = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    return now_s


def test_a_reader_may_take_its_time_between_two_pages(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a million objects takes longer than to list them."""
    monkeypatch.setattr(s3_objects, "LISTING_S", 10.0)
    now_s = [0.0]
    monkeypatch.setattr("dledger_pipeline.object_store.s3_objects.time.monotonic", lambda: now_s[0])
    pages = iter([listing("p/g/a", after="t"), listing("p/g/b")])
    server.rule = lambda _: Answered(body=next(pages))

    found = []
    for each in server.store().listed("g"):
        found.append(each.name)
        now_s[0] += 100

    assert found == ["g/a", "g/b"]


@pytest.mark.found
@pytest.mark.parametrize(
    "body",
    [
        listing("elsewhere/g/a"),
        listing("p/other/a"),
        listing("p/g/a").replace(b"<Size>1", b"<Size>-1<"),
        listing("p/g/a").replace(b"2026-01-01", b"never"),
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<?xml version='1.0'?><!DOCTYPE l [<!ENTITY a 'hunter2'>]><ListBucketResult/>",
        listing("p/g/a").decode().encode("utf-16"),
        b"<html>hunter2</html>",
        FOREIGN,
        b"",
        b"\xff\xfe",
    ],
)
def test_what_is_no_listing_is_told_without_its_words(server: HostileServer, body: bytes) -> None:
    """Names from elsewhere are none: they would be deleted, or read."""
    server.rule = lambda _: Answered(body=body)

    with pytest.raises(StoreUnavailable, match=r"s3://bucket/p/g/: what answers is no S3") as told:
        [*server.store().list("g")]

    assert WORD not in str(told.value)


# --- redirects and foreign words -----------------------------------------------------------------


@pytest.mark.found
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(server: HostileServer, status: int) -> None:
    """Found: A9. The error says which server that would have been, and no more of it."""
    with hostile_server() as other:
        place = f"{other.endpoint.replace('//', '//user:hunter2@')}/latest/hunter2?hunter2"
        server.rule = lambda _: Answered(status=status, headers={"location": place})
        store = server.store()

        for ask in EVERYTHING:
            with pytest.raises(StoreRedirects, match="none is followed") as told:
                ask(store)
            assert f"a redirect to {other.endpoint}, and" in str(told.value)
            assert WORD not in str(told.value)

        assert other.asked == []
    assert all("authorization" in asked.headers for asked in server.asked)


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        ({"x-amz-bucket-region": "eu-west-1"}, "the region eu-west-1"),
        ({"x-amz-bucket-region": WORD + "\t!", "location": "/x"}, "a place of the same server"),
        ({"location": "http://[::1]:99999/"}, "a place that has no name"),
        ({"location": "http://[::1/"}, "a place that has no name"),
        ({"location": f"http://{WORD} x/"}, "a place that has no name"),
        ({"location": f"gopher://{WORD}/"}, "a place that has no name"),
        ({"location": f"https://[fd00::1]:8/{WORD}"}, "https://[fd00::1]:8"),
        ({}, "a place of the same server"),
    ],
)
def test_a_redirect_is_told_by_a_server_or_region(
    server: HostileServer, headers: dict[str, str], place: str
) -> None:
    """Amazon names the region of a bucket that is asked for in another."""
    server.rule = lambda _: Answered(status=301, headers=headers)

    with pytest.raises(StoreRedirects) as told:
        server.store().get("a")

    assert told.value.place == place
    assert WORD not in str(told.value)


@pytest.mark.found
@pytest.mark.parametrize("status", [201, 206, 400, 403, 404, 412, 503])
@pytest.mark.parametrize(
    "body", [FOREIGN, f"<html><Code>{WORD}</Code></html>".encode(), b"<Error><Code>No, no"]
)
def test_no_word_of_a_foreign_answer_is_told(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    """Found: A9. Its status is told, and of S3's own documents the code."""
    monkeypatch.setattr(s3_requests, "_TRIES", 2)
    server.rule = lambda _: Answered(status=status, body=body)
    store = server.store()

    for ask in EVERYTHING:
        told = _told(ask, store)
        assert WORD not in told
        assert "ADMIN" not in told


def _told(ask: Callable[[Store], object], store: Store) -> str:
    """Return the error of a request; empty if there is none."""
    with suppress(StoreError):
        return str(ask(store))[:0]
    with pytest.raises(StoreError) as told:
        ask(store)
    return str(told.value)


@pytest.mark.found
def test_a_result_file_has_nothing_of_an_internal_page(
    server: HostileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Found: A9. It becomes the status of a BrokerBackup, which others may read than the page."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    result = tmp_path / "result"
    where = ["--store", "s3://b/p", "--store-endpoint", server.endpoint, "--allow-http"]
    command = ["verify", *where, "--group-id", "gid", "--result-file", str(result)]
    for answered, words in (
        (Answered(status=400, body=FOREIGN), "s3://b/p/gid/HEAD: it answered 400"),
        (Answered(status=200, body=FOREIGN), "what answers is no S3 server"),
    ):
        server.rule = lambda _, answered=answered: answered  # type: ignore[misc]

        assert main(command) in (1, 4)

        told = json.loads(result.read_text())["error"]
        assert words in json.dumps(told)
        assert WORD not in result.read_text() + capsys.readouterr().err


def test_a_code_of_s3_is_told(server: HostileServer) -> None:
    """It says what to do, and comes of a list of Amazon's."""
    body = b"<?xml version='1.0'?>\n<Error><Code>InvalidRange</Code><Message>x</Message></Error>"
    server.rule = lambda _: Answered(status=416, body=body)

    with pytest.raises(StoreUnavailable, match=r"s3://bucket/p/a: it answered 416 InvalidRange$"):
        server.store().get("a")


# --- room and time -------------------------------------------------------------------------------


@pytest.mark.found
@pytest.mark.parametrize("chunked", [False, True])
def test_no_answer_is_read_beyond_its_size(server: HostileServer, chunked: bool) -> None:
    """Neither of an object nor of a page; nor is one of a stated length read at all."""
    piece = b"x" * (1 << 16)
    sent = [0]

    def body() -> Iterator[bytes]:
        framing = "transfer-encoding: chunked" if chunked else f"content-length: {1 << 40}"
        yield f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode()
        for _ in range(2_000):
            sent[0] += len(piece)
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece

    server.rule = lambda _: Answered(raw=body())
    store = server.store()

    with pytest.raises(CorruptObject, match="more than the 100000 it may have"):
        store.get("a", max_bytes=100_000)
    with pytest.raises(StoreUnavailable, match=r"a page of a listing has over \d+ bytes"):
        [*store.list("g")]

    assert len(server.asked) == 2
    assert sent[0] < 64 << 20


SLOW = {
    "headers": [b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n"],
    "continues": [b"", b"HTTP/1.1 100 Continue\r\n\r\n"],
    "a body": [b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", b"x"],
    "chunks": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"],
}


@pytest.mark.found
@pytest.mark.parametrize("kind", SLOW)
def test_an_answer_that_comes_by_bytes_has_an_end(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each piece is in time; the whole is not."""
    monkeypatch.setattr(s3_requests, "_TRY_S", 0.2)
    monkeypatch.setattr(s3_requests, "_TRIES", 2)
    first, then = SLOW[kind]

    def drip() -> Iterator[bytes]:
        yield first
        for _ in range(200):
            time.sleep(0.01)
            yield then

    server.rule = lambda _: Answered(raw=drip())
    store = server.store()

    for ask in (EVERYTHING[0], EVERYTHING[-1]):
        with pytest.raises(StoreUnavailable, match=r"s3://bucket/p/"):
            ask(store)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([b"220 hunter2 ESMTP\r\n"], "what it answers is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"], "in the middle of an answer"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nhunter2\r\n"], "of an answer"),
        ([], "it was ended"),
        ([b"HTTP/1.1 200 OK\r\n\r\nhunter2"], "in the middle of an answer"),
        ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n"], "is not HTTP"),
    ],
)
def test_what_is_no_answer_is_told_in_our_words(
    server: HostileServer, raw: list[bytes], words: str
) -> None:
    """Whatever speaks there."""
    server.rule = lambda _: Answered(raw=iter(raw))

    with pytest.raises(StoreUnavailable, match=words) as told:
        server.store().get("a")

    assert WORD not in str(told.value)


def test_what_may_pass_is_asked_again(server: HostileServer) -> None:
    """Of a server that is busy, or of one that ended a connection."""
    answers = itertools.chain(
        [Answered(status=503), Answered(raw=iter([])), Answered(status=429)],
        itertools.repeat(Answered(body=b"found")),
    )
    server.rule = lambda _: next(answers)

    assert server.store().get("a").to_pybytes() == b"found"
    assert len(server.asked) == 4


def test_bytes_behind_an_answer_are_not_the_next_one(server: HostileServer) -> None:
    """What a server sends unasked ends the connection."""
    body = iter(
        [
            Answered(raw=iter([b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200"])),
            Answered(body=b"right"),
        ]
    )
    server.rule = lambda _: next(body)
    store = server.store()

    with pytest.raises(ObjectMissing):
        store.get("a")
    assert store.get("a").to_pybytes() == b"right"


def test_a_proxy_of_the_environment_is_asked(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the whole address, which is signed as the server has it."""
    monkeypatch.setenv("http_proxy", server.endpoint)
    monkeypatch.setenv("no_proxy", "")
    server.rule = lambda _: Answered(body=b"found")
    store = Store.open("s3://bucket/p", "http://s3.invalid", CREDENTIALS, allow_http=True)

    assert store.get("a").to_pybytes() == b"found"
    assert server.asked[0].path == "http://s3.invalid/bucket/p/a"
    assert server.asked[0].headers["host"] == "s3.invalid"


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A server's certificate, whose authority is in the file `ca`."""
    authority = pki.Authority("stores")
    pair = authority.issue("store", hosts=("127.0.0.1",))
    for name, text in (("ca", authority.pair.certificate), ("crt", pair.certificate)):
        (tmp_path / name).write_text(text)
    (tmp_path / "key").write_text(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    return context


def test_a_server_is_who_its_certificate_says(
    tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the authorities of the system, or of SSL_CERT_FILE; connections are used again."""
    monkeypatch.setattr(s3_requests, "_TRIES", 1)
    ports = set()

    def rule(asked: Asked) -> Answered:
        ports.add(asked.port)
        return Answered(body=asked.body or b"x" * 1_000_000)

    with hostile_server(rule, tls) as server:
        with pytest.raises(StoreUnavailable, match="its certificate is not trusted"):
            server.store().get("a")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        store = server.store()

        for _ in range(3):
            assert store.get("a").to_pybytes() == b"x" * 1_000_000
            store.put("a", b"y" * 1_000_000)

    assert len(server.asked) == 6
    assert len(ports) == 1


@pytest.mark.found
def test_what_does_not_speak_tls_is_told(server: HostileServer) -> None:
    """And no plain word is said to it."""
    endpoint = server.endpoint.replace("http:", "https:")

    with pytest.raises(StoreUnavailable, match="it does not speak TLS with us"):
        Store.open("s3://bucket/p", endpoint, CREDENTIALS).get("a")

    assert server.asked == []


# --- directories ---------------------------------------------------------------------------------


@pytest.mark.found
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Found: A10. A link is not followed, nor a pipe waited for; no file is made behind it."""
    store = Store.open(f"file://{tmp_path}/store")
    store.create("HEAD", b"1")
    lock, target = tmp_path / "store/.lock", tmp_path / "target"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(target)
        if kind == "link":
            target.write_bytes(b"")
            target.chmod(0o600)

    with pytest.raises(StoreError, match=r"/\.lock is not a file"):
        store.replace("HEAD", b"2", store.get_versioned("HEAD").version)

    assert store.get("HEAD").to_pybytes() == b"1"
    assert target.exists() == (kind == "link")


def test_a_lock_that_is_a_file_is_held(tmp_path: Path) -> None:
    """One that an older version made, too; and nobody else may read a new one."""
    store = Store.open(f"file://{tmp_path}/store")
    store.create("HEAD", b"1")

    store.replace("HEAD", b"2", store.get_versioned("HEAD").version)
    store.replace("HEAD", b"3", store.get_versioned("HEAD").version)

    assert stat.S_IMODE((tmp_path / "store/.lock").stat().st_mode) & 0o007 == 0
    assert store.get("HEAD").to_pybytes() == b"3"
