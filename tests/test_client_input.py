"""What the worker itself provides: URL, offer, credential, files; judged before any connection (contract 2 and 9)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provider.refs import SecretRef
from sidecar import devcerts
from sidecar.client import BlockingClient, CredentialInvalid, Input, InputUnusable, Offer, OfferInvalid, Trouble
from sidecar.client_request import Origin
from tests.kit.scripted import Step, refusal
from tests.kit.side import REFS, Side

PRIVATE = (Input.KEY, Input.CREDENTIAL, Input.OFFER)


def _path(side: Side, which: Input) -> Path:
    files = side.files
    return {
        Input.KEY: files.key,
        Input.CREDENTIAL: files.credential,
        Input.OFFER: files.offer,
        Input.CERTIFICATE: files.cert,
        Input.CA: files.ca,
    }[which]


def _no_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _too_large(path: Path) -> None:
    path.write_bytes(b" " * ((1 << 20) + 1))


def _open_to(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


CASES: list[tuple[Input, Callable[[Path], None], Trouble]] = [
    *((which, Path.unlink, Trouble.MISSING) for which in Input),
    *((which, _no_file, Trouble.NOT_REGULAR) for which in Input),
    *((which, _too_large, Trouble.TOO_LARGE) for which in Input),
    *((which, _open_to(mode), Trouble.OPEN_TO_OTHERS) for which in PRIVATE for mode in (0o644, 0o660, 0o602, 0o601)),
]


@pytest.mark.parametrize(("which", "spoil", "trouble"), CASES)
def test_files_that_cannot_be_used(
    tmp_path: Path, which: Input, spoil: Callable[[Path], None], trouble: Trouble
) -> None:
    """A file that is missing, no file, too large, or (where it is private) open to others is told by its role."""
    side = Side.make(tmp_path)
    spoil(_path(side, which))
    with side.serving() as (server, client):
        if which is Input.OFFER:
            with pytest.raises(InputUnusable) as caught:
                Offer.read(str(side.files.offer))
            error: Exception = caught.value
        else:
            error = side.error(client)
    assert isinstance(error, InputUnusable)
    assert (error.input, error.trouble) == (which, trouble)
    assert server.connections == 0


def test_private_files_of_a_group(tmp_path: Path) -> None:
    """A group may read the private files: a mounted Secret with fsGroup is 0440."""
    side = Side.make(tmp_path)
    for which in PRIVATE:
        _path(side, which).chmod(0o440)
    assert Offer.read(str(side.files.offer)).command == side.offer().command
    with side.serving() as (_, client):
        side.fetch(client)


@pytest.mark.parametrize(
    "token",
    [b"", b"\n", b"ql3w_x_short\n", b"ql3w_x_" + b"A" * 43 + b"\r\n", b"ql3w_x_" + b"A" * 43 + b"\n\n", b"x" * 200],
)
def test_a_credential_that_is_none(tmp_path: Path, token: bytes) -> None:
    """What is no credential is never sent: it could break the header it stands in."""
    side = Side.make(tmp_path)
    devcerts.write(side.files.credential, token)
    with side.serving() as (server, client):
        assert isinstance(side.error(client), CredentialInvalid)
        assert server.connections == 0


def test_a_credential_from_a_source(tmp_path: Path) -> None:
    """A credential may come from a function, which is asked for each attempt."""
    side = Side.make(tmp_path)
    tokens = [f"ql3w_c{n}_{'A' * 43}".encode() for n in range(2)]
    left = list(tokens)

    def source(room: memoryview) -> int:
        token = left.pop(0)
        room[: len(token)] = token
        return len(token)

    with side.serving(Step(refusal(503), "close"), Step(side.whole())) as (server, _):
        files = side.files
        with BlockingClient(
            f"https://localhost:{server.port}",
            cert=str(files.cert),
            key=str(files.key),
            ca=str(files.ca),
            credential=source,
        ) as client:
            side.fetch(client)
        assert [token in request for token, request in zip(tokens, server.requests, strict=True)] == [True, True]


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1",
        "https://localhost:1/path",
        "https://localhost:1//",
        "https://localhost:1?x",
        "https://localhost:1/?",
        "https://localhost:1#",
        "https://u:p@localhost:1",
        "https://localhost:0",
        "https://localhost:65536",
        "https://localhost:x",
        "https://",
        "https://:1",
        "https://lo calhost:1",
        "https://localhost:1\r\n",
        "https://[::1",
        "localhost:1",
        "",
    ],
)
def test_urls_that_are_no_origin(url: str) -> None:
    """Only an https origin is a URL for the client; the text of the error is fixed."""
    with pytest.raises(ValueError, match="must be an https origin") as caught:
        BlockingClient(url, cert="", key="", ca="", credential="")
    assert str(caught.value).endswith("for example https://sidecar.example:5801")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://localhost:5801", ("localhost", 5801, "localhost:5801")),
        ("https://Sidecar.Example/", ("sidecar.example", 443, "Sidecar.Example")),
        ("https://[::1]:5801/", ("::1", 5801, "[::1]:5801")),
    ],
)
def test_urls_that_are(url: str, expected: tuple[str, int, str]) -> None:
    """Host, port and `host` header come out of an origin."""
    assert Origin.parse(url) == Origin(*expected)


def _wrong_offers(good: dict[str, object]) -> list[object]:
    entries = good["environment"]
    assert isinstance(entries, list)
    other = SecretRef.of("project-1", "another").text
    session = str(good["sessionId"])
    wrong: list[object] = [{name: value for name, value in good.items() if name != key} for key in good]
    wrong += [good | {"more": 1}, good | {"workerId": "-"}, good | {"workerId": 1}]
    wrong += [good | {"sessionId": "x"}, good | {"sessionId": session.upper()}, good | {"sessionId": session[:-1]}]
    expiries: list[object] = ["1", 1.5, -1, True, None, 10**17]
    wrong += [good | {"leaseExpiresAtMs": expiry} for expiry in expiries]
    lists: list[object] = [{}, [], entries[:1], entries[::-1], [*entries, "x"], [*entries, entries[0]]]
    lists += [[*entries, {"name": "A"}], [*entries, entries[0] | {"more": 1}]]
    wrong += [good | {"environment": one} for one in lists]
    pairs: list[tuple[object, object]] = [("", REFS[0].text), ("a\n", REFS[0].text), ("n" * 129, REFS[0].text)]
    pairs += [(7, REFS[0].text), ("A", other), ("A", 7), ("A", None)]
    wrong += [good | {"environment": [*entries, {"name": name, "secretRef": ref}]} for name, ref in pairs]
    return [*wrong, good | {"taskId": "\0"}, good | {"leaseToken": "short"}, [], None, "x", 7]


def test_offers_that_are_none(tmp_path: Path) -> None:
    """A missing or unknown key, a wrong type, or an environment that is not the refs' own is refused without text."""
    good = Side.make(tmp_path).document
    text = json.dumps(good).encode()
    Offer.parse(text)
    for data in [*(json.dumps(one).encode() for one in _wrong_offers(good)), b"", b"{", text + b"x", b"\xff"]:
        with pytest.raises(OfferInvalid) as caught:
            Offer.parse(data)
        assert (str(caught.value), caught.value.__context__) == ("The offer is malformed.", None)


def test_names_may_share_a_ref(tmp_path: Path) -> None:
    """The plan's refs are each name's at its first occurrence, so two names may share one."""
    side = Side.make(tmp_path)
    entries = side.document["environment"]
    assert isinstance(entries, list)
    shared = side.offer(environment=[*entries, {"name": "AGAIN", "secretRef": REFS[0].text}])
    assert [name for name, _ in shared.environment] == ["SECRET_0", "SECRET_1", "AGAIN"]
