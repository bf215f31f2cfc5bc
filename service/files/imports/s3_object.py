"""An object of a tenant's bucket as a presigned GET (AWS Signature Version 4, query parameters), under the tenant's own keys.

Written here, since obstore reads the service's own credentials from its environment beside those that it is given, and signs no
version. Knows no HTTP: who calls the URL does so through the SSRF guard. Source: docs.aws.amazon.com/AmazonS3/latest/API,
"Authenticating Requests: Using Query Parameters".
"""

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from service.http.problems import invalid_field, shown

SCHEME = "s3://"
_MOST_SECONDS = 7 * 24 * 3600  # of a signature
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class S3Object:
    """What is read, and by whom: without keys by anybody. `endpoint`: of another S3-compatible server, path-style; empty: AWS.
    `version`: of the object; empty: the newest."""

    bucket: str
    key: str
    region: str = "us-east-1"
    endpoint: str = ""
    version: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def url(self, seconds: float, now: datetime | None = None) -> str:
        """Where it is got within so many seconds from now; signed, unless anybody may."""
        origin, path = self._place()
        query = {"versionId": self.version} if self.version else {}
        if not self.access_key_id:
            return origin + path + (f"?{_encoded(query)}" if query else "")
        moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        query |= {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{self.access_key_id}/{scope}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": str(max(1, min(_MOST_SECONDS, int(seconds)))),
            "X-Amz-SignedHeaders": "host",
        }
        query |= {"X-Amz-Security-Token": self.session_token} if self.session_token else {}
        said = _encoded(query)
        request = f"GET\n{path}\n{said}\nhost:{urlsplit(origin).netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(request.encode()).hexdigest()
        signature = hmac.digest(self._signing_key(moment[:8]), f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode(), "sha256")
        return f"{origin}{path}?{said}&X-Amz-Signature={signature.hex()}"

    def _place(self) -> tuple[str, str]:
        """Origin and encoded path: the bucket is in the host's name on AWS, as far as a certificate may name it."""
        key = "/" + quote(self.key, safe="/-._~")
        if self.endpoint:
            parts = urlsplit(self.endpoint)
            return f"{parts.scheme}://{parts.netloc.lower()}", f"{parts.path.rstrip('/')}/{self.bucket}{key}"
        host = f"s3.{self.region}.amazonaws.com"
        return (f"https://{host}", f"/{self.bucket}{key}") if "." in self.bucket else (f"https://{self.bucket}.{host}", key)

    def _signing_key(self, day: str) -> bytes:
        signed = f"AWS4{self.secret_access_key}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            signed = hmac.digest(signed, part.encode(), "sha256")
        return signed


def bucket_and_key(source: str) -> tuple[str, str]:
    """Of s3://bucket/key. Raises Invalid."""
    bucket, _, key = source.removeprefix(SCHEME).partition("/")
    why = None
    if not bucket or not key:
        why = f"not {shown(source)!r}"
    elif not _BUCKET.fullmatch(bucket):
        why = f"whose bucket has 3 to 63 characters of a-z, 0-9, '.' and '-', unlike {shown(bucket)!r}"
    elif any(part in ("", ".", "..") for part in key.split("/")):
        why = f"whose key has no empty part, '.' or '..', unlike {shown(key)!r}"
    if why is not None:
        raise invalid_field("source", "not_an_object", f"must be of the form s3://bucket/key, {why}")
    return bucket, key


def _encoded(query: dict[str, str]) -> str:
    """Sorted and percent-encoded, as it is signed and sent."""
    return "&".join(f"{quote(name, safe='-._~')}={quote(value, safe='-._~')}" for name, value in sorted(query.items()))
