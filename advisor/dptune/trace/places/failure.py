"""Why a URL could not be read, in one sentence and a hint, from what fsspec and the stores behind it raise.

Errors are recognized by the names of their classes: none of those packages is imported here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from dptune.trace.places.url import redacted

_DENIED = {
    "AccessDenied",
    "AuthenticationException",
    "AuthenticationFailed",
    "ClientAuthenticationError",
    "Forbidden",
    "GatedRepoError",
    "PermissionError",
}
_NO_LOGIN = {
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "RefreshError",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}
_UNREACHABLE = {
    "ClientConnectorError",
    "ConnectTimeoutError",
    "ConnectionRefusedError",
    "EndpointConnectionError",
    "NewConnectionError",
    "gaierror",
}
_BROKEN = {
    "ClientPayloadError",
    "ConnectionClosedError",
    "ConnectionError",
    "FSTimeoutError",
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "ReadTimeoutError",
    "ResponseStreamingError",
    "ServerDisconnectedError",
    "TimeoutError",
}
_LOGIN_HINT = (
    "log in as the store's own tools do (for s3:// `aws configure` or AWS_PROFILE), or see fsspec's configuration"
)
_ACCESS_HINT = "check the credentials in use and what they may read"
_NETWORK_HINT = "check the network, the host and the endpoint, and try again"


class RemoteError(OSError):
    """Why a URL cannot be read, as a phrase, with a hint; `absent` where nothing is there."""

    def __init__(self, reason: str, hint: str, *, absent: bool = False) -> None:
        super().__init__(reason)
        self.hint = hint
        self.absent = absent


def explained(error: BaseException, protocol: str) -> RemoteError:
    """What an error of fsspec's means."""
    if isinstance(error, RemoteError):
        return error
    chain = list(_chain(error))
    names = {kind.__name__ for cause in chain for kind in type(cause).__mro__}
    statuses = set(map(_status, chain))
    if isinstance(error, ImportError):
        return RemoteError(f"{protocol}:// needs a package that is not installed", f"pip install {_package(error)}")
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return RemoteError(f"fsspec knows no protocol {protocol}://", _meant(protocol))
    if names & _NO_LOGIN:
        return RemoteError("there are no credentials for it, or they have expired", _LOGIN_HINT)
    if names & _DENIED or statuses & {401, 403}:
        return RemoteError("access is denied", _ACCESS_HINT)
    if names & _UNREACHABLE:
        return RemoteError("the host cannot be reached", _NETWORK_HINT)
    if names & _BROKEN:
        return RemoteError("the connection broke off or timed out", _NETWORK_HINT)
    if max(statuses) >= 500:
        return RemoteError(f"the server failed, with status {max(statuses)}", "try again later")
    if "bucket does not exist" in str(error):
        return RemoteError("its bucket does not exist", "check the name of the bucket, and the endpoint")
    if "FileNotFoundError" in names:
        return RemoteError("it does not exist", "check the spelling of the address", absent=True)
    return RemoteError(_words(error), "fsspec, or the package it uses, gave this reason")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    """The status that an http server answered with, by the names it has; 0 where there is none."""
    for name in ("status", "status_code", "code"):  # aiohttp warns of its `code`, and has a `status`
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status
    return 0


def _package(error: ImportError) -> str:
    """What to install, from fsspec's words: `Install s3fs to access S3`, `requires "requests" and "aiohttp"`."""
    text = str(error)
    found = re.findall(r'"([\w-]+)"', text) or re.findall(r"nstall ([\w-]+)", text)
    return " ".join(found) or (error.name or text).partition(".")[0].replace("_", "-")


def _meant(protocol: str) -> str:
    from fsspec.registry import known_implementations

    if protocol == "abfss":  # known to fsspec once its package is there
        return "pip install adlfs"
    near = difflib.get_close_matches(protocol, known_implementations, n=1, cutoff=0.5)
    return f"did you mean {near[0]}://?" if near else "s3://, gs://, abfs://, hf:// and https:// are some that it knows"


def _words(error: BaseException) -> str:
    """The first line of an error, without the secrets of a URL in it."""
    line = (str(error).strip().splitlines() or [""])[0]
    said = re.sub(r"[A-Za-z][\w+.-]+://[^\s'\"]+", lambda found: redacted(found[0]), line)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
