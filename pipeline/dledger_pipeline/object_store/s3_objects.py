"""Objects in an S3 server by keys: Get, Put, Head, List and Delete, and writes with a condition.

Amazon S3, and every server that knows ``If-None-Match: *`` and ``If-Match`` for PutObject, decides
atomically between writers. What a server says is told by its status and S3's code alone: users read
it in the status of a backup, and may have named any server. Used by `store`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, NoReturn
from urllib.parse import urlsplit

from dledger_pipeline.errors import (
    AlreadyExists,
    ListingTooLong,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreRedirects,
    StoreUnavailable,
    VersionConflict,
)
from dledger_pipeline.object_store.s3_listing import NotAListing, Page, parse_page
from dledger_pipeline.object_store.s3_requests import (
    MAX_PAGE_BYTES,
    Answer,
    NoAnswer,
    Request,
    Requests,
    TooLarge,
)
from dledger_pipeline.object_store.stored import (
    MAX_OBJECT_BYTES,
    UNVERSIONED,
    Credentials,
    Listed,
    Removal,
    Stored,
    check_names,
    check_size,
)

LISTING_S: Final = 600.0
"""What waiting for the pages of one listing may take: a million names are 1,000 pages."""
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
_NO_BUCKET: Final = "NoSuchBucket"


class S3Objects:
    """Objects below ``s3://bucket/path``, at an endpoint or at Amazon."""

    def __init__(self, url: str, endpoint: str | None, credentials: Credentials) -> None:
        """Take the URL; this sends nothing.

        Raises:
            StoreError: The URL names no bucket.
        """
        parts = urlsplit(url)
        if not parts.netloc:
            raise StoreError(f"{url} names no bucket; write s3://bucket/path")
        self._url = url.rstrip("/")
        self._bucket = parts.netloc
        folder = parts.path.strip("/")
        self._prefix = f"{folder}/" if folder else ""
        at = endpoint or f"https://s3.{credentials.region}.amazonaws.com"
        self._requests = Requests(at, credentials)

    def get(self, name: str, max_bytes: int) -> Stored:
        """Return an object; its version is what the server calls its tag."""
        answer = self._ask("GET", name, max_bytes=max_bytes)
        if answer.status != 200:
            self._refuse(name, answer)
        return Stored(data=answer.body, version_of=lambda: answer.headers.get("etag", ""))

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""
        answer = self._head(name)
        try:
            return int(answer.headers["content-length"])
        except (KeyError, ValueError):
            raise StoreUnavailable(f"{self._url}/{name}: what answers is no S3 server") from None

    def put(self, name: str, data: memoryview) -> None:
        """Write an object, replacing one of the same name."""
        answer = self._ask("PUT", name, body=data)
        if answer.status != 200:
            self._refuse(name, answer)

    def create(self, name: str, data: memoryview) -> None:
        """Write an object unless there is one."""
        answer = self._ask("PUT", name, body=data, headers={"if-none-match": "*"})
        if answer.status in (409, 412):
            raise AlreadyExists(name)
        if answer.status != 200:
            self._refuse(name, answer)

    def replace(self, name: str, data: memoryview, version: str) -> None:
        """Write an object if it has this version."""
        answer = self._ask("PUT", name, body=data, headers={"if-match": version})
        if answer.status in (409, 412) or (answer.status == 404 and answer.code != _NO_BUCKET):
            raise VersionConflict(name)
        if answer.status != 200:
            self._refuse(name, answer)

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects below the folder, in any order."""
        for page in self._pages(f"{prefix}/" if prefix else "", {}):
            for found in page.objects:
                yield Listed(
                    name=f"{prefix}/{found.name}" if prefix else found.name,
                    size_bytes=found.size_bytes,
                    modified_s=found.modified_s,
                )

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the URL."""
        for page in self._pages("", {"delimiter": "/"}):
            yield from page.folders

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if it is not there."""
        answer = self._ask("DELETE", name)
        if answer.status not in (200, 204) and not _is_missing(answer):
            self._refuse(name, answer)

    def delete_old(self, name: str, before_s: float) -> Removal:
        """Remove an object unless it was written since: no server deletes by age in one call."""
        try:
            headers = self._head(name).headers
        except ObjectMissing:
            return Removal.GONE
        try:
            written = parsedate_to_datetime(headers["last-modified"])
        except (KeyError, ValueError):
            raise StoreUnavailable(f"{self._url}/{name}: what answers is no S3 server") from None
        if written.replace(tzinfo=UTC).timestamp() >= before_s:
            return Removal.YOUNG
        self.delete(name)
        return Removal.GONE if headers.get("x-amz-version-id") in UNVERSIONED else Removal.HIDDEN

    def sweep(self, before_s: float) -> int:  # noqa: ARG002 - objects appear whole or not at all
        """Remove what killed writers left; there is nothing."""
        return 0

    def _head(self, name: str) -> Answer:
        answer = self._ask("HEAD", name)
        if answer.status == 404:  # unlike GET's, its answer does not say what is missing
            answer = self._ask("GET", name, max_bytes=MAX_OBJECT_BYTES)
        if answer.status != 200:
            self._refuse(name, answer)
        return answer

    def _pages(self, below: str, query: Mapping[str, str]) -> Iterator[Page]:
        """Yield the pages of a listing; only waiting for them takes of its time."""
        left_s, token, names = LISTING_S, "", 0
        while True:
            asked = {"list-type": "2", "prefix": self._prefix + below, **query}
            if token:
                asked["continuation-token"] = token
            until_s = time.monotonic() + left_s
            try:
                page = self._page(below, asked, left_s)
            except StoreUnavailable as error:
                if time.monotonic() < until_s:
                    raise
                where, limit = f"{self._url}/{below}", f"{LISTING_S:.0f} s"
                raise ListingTooLong(where, f"it took over {limit}") from error
            left_s = until_s - time.monotonic()
            names += len(page.objects) + len(page.folders)  # of both: either may be unasked for
            check_names(f"{self._url}/{below}", names)
            yield page
            token = page.token
            if not token:
                return

    def _page(self, below: str, query: Mapping[str, str], within_s: float) -> Page:
        try:
            request = Request(method="GET", path=f"/{self._bucket}", query=query)
            answer = self._requests.ask(request, within_s=within_s)
        except NoAnswer as error:
            raise StoreUnavailable(f"{self._url}/{below}: {error}") from error
        except TooLarge as error:
            raise StoreUnavailable(
                f"{self._url}/{below}: a page of a listing has over {MAX_PAGE_BYTES} bytes"
            ) from error
        if answer.status != 200:
            self._refuse(below, answer)
        try:
            return parse_page(answer.body, self._prefix + below)
        except NotAListing:  # what it has read instead is nobody's to see
            raise StoreUnavailable(
                f"{self._url}/{below}: what answers is no S3 server, or this is no listing"
            ) from None

    def _ask(
        self,
        method: str,
        name: str,
        *,
        body: memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> Answer:
        request = Request(
            method=method,
            path=f"/{self._bucket}/{self._prefix}{name}",
            headers=headers or {},
            body=body,
            max_bytes=max_bytes,
        )
        try:
            return self._requests.ask(request)
        except NoAnswer as error:
            raise StoreUnavailable(f"{self._url}/{name}: {error}") from error
        except TooLarge as error:
            check_size(name, error.size_bytes or max_bytes + 1, max_bytes)
            raise

    def _refuse(self, name: str, answer: Answer) -> NoReturn:
        """Raise our error for an answer that is none of success."""
        where, status, code = f"{self._url}/{name}", answer.status, answer.code
        told = f"it answered {status} {code}".rstrip()
        if 300 <= status < 400:
            raise StoreRedirects(where, status, _place(answer))
        if code == _NO_BUCKET:
            raise StoreError(f"the bucket of {self._url} does not exist; create it first")
        if status in (401, 403) or code == "AccessDenied" or "User" in code:
            raise StoreDenied(where, code or told)
        if status == 404:
            raise ObjectMissing(name)
        raise StoreUnavailable(f"{where}: {told}")


def _is_missing(answer: Answer) -> bool:
    return answer.status == 404 and answer.code != _NO_BUCKET


def _place(answer: Answer) -> str:
    """Return where a redirect leads: scheme, host and port, or the region, and nothing more."""
    region = answer.headers.get("x-amz-bucket-region", "")
    if _REGION.fullmatch(region):
        return f"the region {region}"
    try:
        parts = urlsplit(answer.headers.get("location", ""))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "a place that has no name"
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        return "a place of the same server" if not parts.netloc else "a place that has no name"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")
