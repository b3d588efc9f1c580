"""PostgreSQL is named by a URL or by its parts, and TLS is waived twice or not at all (contract 8)."""

import pytest

from sidecar import config
from sidecar.config import load
from tests.kit.environments import LOGIN, POOL, POSTGRES, URL, changed, faulted


def test_postgres_is_named_by_parts_or_by_a_url() -> None:
    """Parts and URL say the same things."""
    parts = load(POSTGRES).postgres
    assert parts is not None
    assert (parts.host, parts.port, parts.database, parts.user) == (
        "postgres.database.svc",
        5432,
        "qinglong",
        "sidecar_login",
    )
    assert (parts.password.read(), parts.tls) == ("a password", config.PostgresTls("postgres.database.svc", None))
    url = load(URL).postgres
    assert url is not None
    assert (url.host, url.port, url.database, url.user, url.password.read()) == (
        "db.example",
        5433,
        "qinglong",
        "login",
        "word",
    )
    assert config.store_from_environment(URL).postgres == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgres://u:p@h/d", ("h", 5432, "d", "u", "p")),
        ("postgresql://u:p@10.1.2.3:1/d", ("10.1.2.3", 1, "d", "u", "p")),
        ("postgresql://u:p@[::1]:65535/d", ("::1", 65535, "d", "u", "p")),
        ("postgresql://u%40x:p%3A%2F%40%3F%23%25:q@h/d%20e", ("h", 5432, "d e", "u@x", "p:/@?#%:q")),
        ("postgresql://u:%E5%8F%A3%EF%BF%BD@h/d", ("h", 5432, "d", "u", "口\ufffd")),
    ],
)
def test_a_url_is_read_part_by_part(url: str, said: tuple[object, ...]) -> None:
    """Escapes are undone inside their part, and the port has a default."""
    found = load(changed(URL, {f"{LOGIN}URL": url})).postgres
    assert found is not None
    assert (found.host, found.port, found.database, found.user, found.password.read()) == said


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h",
        "postgresql://u:p@h/",
        "postgresql://u@h/d",
        "postgresql://:p@h/d",
        "postgresql://u:@h/d",
        "postgresql:///d",
        "mysql://u:p@h/d",
        "u:p@h/d",
        "postgresql://u:p@h,g/d",
        "postgresql://u:p@h:0/d",
        "postgresql://u:p@h:65536/d",
        "postgresql://u:p@h:/d",
        "postgresql://u:p@h/d/e",
        "postgresql://u:p@h/d#f",
        "postgresql://u:p@evil@h/d",
        "postgresql://u:p/@h/d",
        "postgresql://u:p%@h/d",
        "postgresql://u:p%ff@h/d",
        "postgresql://u:p%00@h/d",
        "postgresql://u:p@h/d%0a",
        "postgresql://u:p@[::zz]/d",
        "postgresql://u:p@[h]/d",
        "postgresql://u:p@[1.2.3.4]/d",
        "postgresql://u:p@[]/d",
        "postgresql://u:p@::1/d",
        "postgresql://u:p@-h/d",
        "postgresql://u:p @h/d",
        " postgresql://u:p@h/d",
        "postgresql://u:p@h/d\n",
        "postgresql://u:p@h/" + "d" * 64,
        "postgresql://u:p@h/d?sslmode=disable",
        "postgresql://u:p@h/d?sslrootcert=/x",
        "postgresql://u:p@h/d?SSLMODE=disable",
        "postgresql://u:p@h/d?options=-c",
        "postgresql://u:p@h/d?",
    ],
)
def test_any_other_url_is_a_fault(url: str) -> None:
    """A URL that lacks a part, has another, or could be read in two ways is a fault; so is any parameter."""
    assert faulted(URL, **{f"{LOGIN}URL": url}) == [f"{LOGIN}URL"]


@pytest.mark.parametrize("part", ["HOST", "PORT", "DATABASE", "USER", "PASSWORD", "PASSWORD_FILE"])
def test_a_url_stands_alone(part: str) -> None:
    """A part beside the URL is a fault of the part."""
    assert faulted(URL, **{f"{LOGIN}{part}": "5432"}) == [f"{LOGIN}{part}"]


@pytest.mark.parametrize("part", ["HOST", "DATABASE", "USER", "PASSWORD"])
def test_parts_are_required(part: str) -> None:
    """Without a URL, host, database, user and a password are required; each is missed by its name."""
    assert faulted(POSTGRES, **{f"{LOGIN}{part}": None}) == [f"{LOGIN}{part}"]


def test_postgres_tls_is_on_unless_waived_twice() -> None:
    """verify-full needs a server name of two labels; disable needs the second variable and refuses a CA file."""
    mode, insecure, ca, name = (
        f"{POOL}{end}" for end in ("TLS_MODE", "ALLOW_INSECURE", "TLS_CA_FILE", "TLS_SERVERNAME")
    )
    assert faulted(POSTGRES, **{name: None}) == [name]
    for text in ("localhost", "127.0.0.1", "*.example.com", "a..b", "::1", "db.example."):
        assert faulted(POSTGRES, **{name: text}) == [name]
    assert faulted(POSTGRES, **{mode: "disable"}) == [mode]
    assert faulted(POSTGRES, **{mode: "disable", insecure: "false"}) == [mode]
    assert faulted(POSTGRES, **{mode: "disable", insecure: "true", ca: "/ca.crt"}) == [ca]
    bare = load(changed(POSTGRES, {mode: "disable", insecure: "true", name: None})).postgres
    assert bare is not None and bare.tls is None
    full = load(changed(POSTGRES, {insecure: "true", ca: "/ca.crt"})).postgres
    assert full is not None and full.tls == config.PostgresTls("postgres.database.svc", "/ca.crt")


@pytest.mark.parametrize("name", [f"{LOGIN}DATABASE", f"{LOGIN}USER", f"{POOL}APPLICATION_NAME"])
def test_names_fit_the_server(name: str) -> None:
    """What PostgreSQL would cut off or cannot hold is a fault."""
    for text in ("x" * 64, "a\nb", "a\x7fb"):
        assert faulted(POSTGRES, **{name: text}) == [name]
