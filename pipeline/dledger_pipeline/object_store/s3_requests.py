"""Requests to an S3 server that a user named: bounded in bytes and time, never led elsewhere.

Whoever may make a backup names the server, and what answers there may be anything: another service
of the network, or a server that never ends. So a redirect is an answer and not a way, every answer
has a largest size, each try a time, and a try is repeated as often as it may help. Connections are
kept for the next request. Used by `s3_objects` only.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import math
import os
import random
import re
import socket
import ssl
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa

from dledger_pipeline.object_store.s3_signature import sign
from dledger_pipeline.object_store.stored import Credentials

MAX_PAGE_BYTES: Final = 4 << 20
"""Of an answer that is no object: a page of a listing is 1,000 names of at most 1 KiB."""

_CONNECT_S: Final = 5.0
_ANSWERING_S: Final = 15.0
"""How long a server may say or take nothing: until it answers, and between two pieces."""
_TRY_S: Final = 300.0
"""For a whole try: 128 MiB at half a megabyte a second."""
_TRIES: Final = 6
_TRYING_S: Final = 30.0
"""No other try begins later: Kubernetes retries a Job, so longer failures are not waited out."""
_PAUSE_S: Final = 0.1
_MAX_IDLE: Final = 16
_PIECE: Final = 1 << 18
_SUCCESSES: Final = (200, 204)
_MAY_PASS: Final = frozenset((408, 429, 500, 502, 503, 504))
_CONFLICTS: Final = ("ConditionalRequestConflict", "OperationAborted")
"""With 409 at Amazon: another write of the same name is under way."""
_CODE: Final = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?<Error\b[^>]*>.*?<Code>(\w{1,64})</Code>", re.DOTALL
)
_BROKEN: Final = (OSError, http.client.HTTPException, ValueError)
"""What a connection and http.client raise; the last of numbers in headers that are none."""
_WORDS: Final = (
    (TimeoutError, "it says nothing"),
    (socket.gaierror, "its name is not known"),
    (ssl.SSLError, "it does not speak TLS with us, or ended it"),
    (http.client.IncompleteRead, "it ended in the middle of an answer"),
)


class NoAnswer(Exception):
    """The server could not be asked, or did not answer in time; says what went wrong, in our words.

    A word of the server is never in it.
    """


class TooLarge(Exception):
    """An answer of more bytes than it may have; *size_bytes* is what it states, 0 if nothing."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server answered.

    Attributes:
        status: The status of HTTP.
        code: The code of an S3 error document; empty for everything else.
        headers: By names in lower case.
        body: Its bytes; of an error none, since it may be anybody's.
    """

    status: int
    code: str
    headers: Mapping[str, str]
    body: pa.Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked.

    Attributes:
        path: From the server's root, with a slash before it; not yet quoted.
        query: Not yet quoted.
        headers: By names in lower case.
        body: What is written; None for nothing.
        max_bytes: How long the body of a success may be.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: memoryview | None = None
    max_bytes: int = MAX_PAGE_BYTES


class Requests:
    """One server; any number of threads may ask, each by a connection that is its own meanwhile."""

    def __init__(self, endpoint: str, credentials: Credentials) -> None:
        """Take ``http(s)://host:port`` with a path or none; this sends nothing."""
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._authority = parts.netloc.rpartition("@")[2]
        self._base = parts.path.rstrip("/")
        self._credentials = credentials
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        weakref.finalize(self, _close, self._idle)

    def ask(self, request: Request, *, within_s: float = math.inf) -> Answer:
        """Send a request, again while that may help, and return the last answer, errors too.

        Args:
            request: What to ask.
            within_s: What all tries together may take.

        Raises:
            NoAnswer: Of the last try, too.
            TooLarge: The answer's body was left unread.
        """
        digest = hashlib.sha256(request.body or b"").hexdigest()
        began_s = time.monotonic()
        for attempt in range(1, _TRIES + 1):
            until_s = min(time.monotonic() + _TRY_S, began_s + within_s)
            answer: Answer | None = None
            try:
                with self._lend(until_s) as connection:
                    answer = self._exchange(connection, request, digest, until_s)
            except NoAnswer:
                if not _may_try_again(attempt, began_s, within_s):
                    raise
            if answer is not None and not (
                _may_pass(answer) and _may_try_again(attempt, began_s, within_s)
            ):
                return answer
            time.sleep(_PAUSE_S * 2**attempt * random.random())
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _lend(self, until_s: float) -> Iterator[http.client.HTTPConnection]:
        """Lend a connection for one try that ends by then; keep it if it can serve another.

        Raises:
            NoAnswer: For whatever the connection raises.
        """
        connection = self._connection()
        connection.response_class = partial(_Response, until_s=until_s)  # type: ignore[assignment]
        try:
            yield connection
        except _BROKEN as error:
            connection.close()
            raise NoAnswer(_what(error)) from None  # its words may be the server's
        except BaseException:  # it is in the middle of an answer
            connection.close()
            raise
        if connection.sock is not None and len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request, digest: str, until_s: float
    ) -> Answer:
        path = self._base + quote(request.path, safe="/-_.~")
        words = "&".join(f"{_quote(k)}={_quote(v)}" for k, v in sorted(request.query.items()))
        headers = {"host": self._authority, **request.headers}
        headers = sign(
            self._credentials, request.method, path, words, headers=headers, digest=digest
        )
        pieces, body = None, request.body
        if body:
            headers["content-length"] = str(body.nbytes)
            pieces = _pieces(body, until_s)
        origin = f"http://{self._authority}" if self._proxy and not self._secure else ""
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered already
            connection.request(
                request.method, f"{origin}{path}{words and f'?{words}'}", pieces, headers
            )
        response = connection.getresponse()
        try:
            answer = _read_answer(response, request.max_bytes)
            if not response.isclosed():  # the rest of it would be taken for the next answer
                connection.close()
        finally:
            response.close()
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        """Return a connection to the server that nobody else uses; it may not be open yet."""
        if self._process != os.getpid():  # those of the process that this was forked from
            _close(self._idle)
            self._process = os.getpid()
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                if _is_quiet(connection):
                    return connection
                connection.close()
        host, port = self._host, self._port
        if self._proxy:
            host, port = self._proxy
        if not self._secure:
            return _Plain(host, port, timeout=_CONNECT_S)
        made = _Secure(host, port, timeout=_CONNECT_S, context=self._context)
        if self._proxy:
            made.set_tunnel(self._host, self._port or 443)
        return made

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    @cached_property
    def _proxy(self) -> tuple[str, int] | None:
        """The environment's proxy for this server; None: there is none."""
        found = getproxies().get("https" if self._secure else "http", "")
        if not found or proxy_bypass(self._host):
            return None
        parts = urlsplit(found if "//" in found else f"//{found}")
        return parts.hostname or "", parts.port or 80


class _Plain(http.client.HTTPConnection):
    """A connection with one time to be made, and another to answer."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_ANSWERING_S)


class _Secure(http.client.HTTPSConnection):
    """The same over TLS."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_ANSWERING_S)


def _close(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _pieces(body: memoryview, until_s: float) -> Iterator[memoryview]:
    """Yield a body in pieces: each has the time of an answer, and all have one together."""
    for start in range(0, len(body), _PIECE):
        if time.monotonic() > until_s:
            raise TimeoutError
        yield body[start : start + _PIECE]


class _Response(http.client.HTTPResponse):
    """An answer whose last byte has a time, however slowly those before it come."""

    def __init__(self, sock: socket.socket, *args: Any, until_s: float, **more: Any) -> None:
        super().__init__(_Timed(sock, until_s), *args, **more)  # type: ignore[arg-type]


class _Timed:
    """What an answer asks of a socket."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock, self._until_s = sock, until_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file to read from."""
        return io.BufferedReader(_TimedReader(self._sock, self._until_s))


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock, self._until_s = sock, until_s
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(min(left_s, _ANSWERING_S))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read_answer(response: http.client.HTTPResponse, max_bytes: int) -> Answer:
    """Read an answer; of an error only the code."""
    code, body = "", pa.py_buffer(b"")
    if response.status in _SUCCESSES:
        body = _body(response, max_bytes)
    else:
        with suppress(TooLarge):
            found = _CODE.match(_body(response, _PIECE).to_pybytes())
            code = found[1].decode() if found else ""
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(status=response.status, code=code, headers=headers, body=body)


def _body(response: http.client.HTTPResponse, max_bytes: int) -> pa.Buffer:
    """Read the body, whole. Raises TooLarge, and what a connection raises."""
    size_bytes = response.length
    if size_bytes is None:
        if not response.chunked and response.status in _SUCCESSES:  # the end of it could be a cut
            raise http.client.IncompleteRead(b"")
        found = bytearray()
        while piece := response.read(_PIECE):
            found += piece
            if len(found) > max_bytes:
                raise TooLarge(0)
        return pa.py_buffer(found)
    if size_bytes > max_bytes:
        raise TooLarge(size_bytes)
    made = pa.allocate_buffer(size_bytes)
    view, at = memoryview(made), 0
    while at < size_bytes:
        count = response.readinto(view[at : at + _PIECE])
        if not count:
            raise http.client.IncompleteRead(b"", size_bytes - at)
        at += count
    response.read()  # nothing; it tells the connection that this answer is over
    return made


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Whether nothing came on an idle connection: an end, or an answer to nothing."""
    sock = connection.sock
    if sock is None:
        return False
    sock.settimeout(0)
    try:
        socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        sock.settimeout(_ANSWERING_S)
        return True
    except OSError:
        return False
    return False


def _may_try_again(attempt: int, began_s: float, within_s: float) -> bool:
    """Whether another try may begin."""
    return attempt < _TRIES and time.monotonic() < began_s + min(_TRYING_S, within_s)


def _may_pass(answer: Answer) -> bool:
    return answer.status in _MAY_PASS or (answer.status == 409 and answer.code in _CONFLICTS)


def _what(error: Exception) -> str:
    """Return what went wrong, in our words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return words
    if isinstance(error, OSError):
        return f"no connection ({os.strerror(error.errno) if error.errno else 'it was ended'})"
    return "what it answers is not HTTP"


def _quote(text: str) -> str:
    return quote(text, safe="-_.~")
