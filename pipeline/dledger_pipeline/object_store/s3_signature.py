"""Amazon's signature, version 4, of a request to S3. Used by `s3_requests` only.

Source: Amazon S3's API reference, "Authenticating Requests: Using the Authorization Header".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime

from dledger_pipeline.object_store.stored import Credentials


def sign(
    key: Credentials,
    method: str,
    path: str,
    query: str,
    *,
    headers: Mapping[str, str],
    digest: str,
) -> dict[str, str]:
    """Return the headers with what signs them.

    Args:
        key: Who signs.
        method: As it is sent.
        path: As it is sent, quoted.
        query: As it is sent: quoted, and sorted by names.
        headers: All that are to be signed, ``host`` among them, by names in lower case.
        digest: The SHA-256 of the body, in hex.
    """
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    sent = {**headers, "x-amz-content-sha256": digest, "x-amz-date": now}
    if key.session_token:
        sent["x-amz-security-token"] = key.session_token
    names = ";".join(sorted(sent))
    lines = [f"{name}:{sent[name]}" for name in sorted(sent)]
    canonical = "\n".join([method, path, query, *lines, "", names, digest])
    scope = f"{now[:8]}/{key.region}/s3/aws4_request"
    secret = f"AWS4{key.secret_access_key}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}"
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key.access_key_id}/{scope}, SignedHeaders={names}, "
        f"Signature={hmac.digest(secret, text.encode(), 'sha256').hex()}"
    )
    return sent
