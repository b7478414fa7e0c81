"""Store URLs: each form, each mistake, and no password in anything printable."""

import pickle

import pytest

from keylane.journal.errors import StoreError
from keylane.journal.urls import (
    Access,
    ClusterAddress,
    EmbeddedAddress,
    Host,
    Login,
    SentinelAddress,
    ServerAddress,
    SocketAddress,
    StoreAddress,
    Tls,
    connection_options,
    parse_store_url,
)

NODES = (Host("h1", 7000), Host("h2", 7001))

FORMS: list[tuple[str, StoreAddress]] = [
    ("redis://", ServerAddress(Host("localhost", 6379), Access())),
    ("redis://host", ServerAddress(Host("host", 6379), Access())),
    ("redis://host:1/2", ServerAddress(Host("host", 1), Access(database=2))),
    ("redis://host?db=3", ServerAddress(Host("host", 6379), Access(database=3))),
    ("redis://[::1]:1", ServerAddress(Host("::1", 1), Access())),
    ("redis://:s%40e%2Fc@host", ServerAddress(Host("host", 6379), Access(None, "s@e/c"))),
    ("redis://me:secret@host", ServerAddress(Host("host", 6379), Access("me", "secret"))),
    ("redis://me@host", ServerAddress(Host("host", 6379), Access("me"))),
    ("REDIS://host", ServerAddress(Host("host", 6379), Access())),
    ("valkey://host", ServerAddress(Host("host", 6379), Access())),
    ("rediss://host", ServerAddress(Host("host", 6379), Access(tls=Tls()))),
    ("valkeys://host", ServerAddress(Host("host", 6379), Access(tls=Tls()))),
    (
        "rediss://host?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
        ServerAddress(Host("host", 6379), Access(tls=Tls("/ca.pem", "/c.pem", "/k.pem"))),
    ),
    (
        "rediss://host?ssl_cert_reqs=none",
        ServerAddress(Host("host", 6379), Access(tls=Tls(cert_reqs="none", check_hostname=False))),
    ),
    ("unix:///run/redis.sock", SocketAddress("/run/redis.sock", Access())),
    ("unix:///run/a%20b.sock?db=4", SocketAddress("/run/a b.sock", Access(database=4))),
    ("unix://me:secret@/run/redis.sock", SocketAddress("/run/redis.sock", Access("me", "secret"))),
    ("unix:///run/a@b.sock", SocketAddress("/run/a@b.sock", Access())),
    ("redis+cluster://h1:7000,h2:7001", ClusterAddress(NODES, Access())),
    ("valkey+cluster://h1:7000,h2:7001/0", ClusterAddress(NODES, Access())),
    ("rediss+cluster://:p@h1:7000,h2:7001", ClusterAddress(NODES, Access(None, "p", tls=Tls()))),
    ("redis+sentinel://h1:7000,h2:7001/main?db=5", SentinelAddress(NODES, "main", Access(database=5))),
    ("redis+sentinel://h1/main", SentinelAddress((Host("h1", 26379),), "main", Access())),
    ("valkeys+sentinel://h1:7000,h2:7001/main", SentinelAddress(NODES, "main", Access(tls=Tls()))),
    (
        "redis+sentinel://me:secret@h1:7000,h2:7001/main?db=1&sentinel_password=secret+%26",
        SentinelAddress(NODES, "main", Access("me", "secret", 1), Login("secret+&")),
    ),
    (
        "rediss+sentinel://h1:7000,h2:7001/main?sentinel_username=we&sentinel_password=secret",
        SentinelAddress(NODES, "main", Access(tls=Tls()), Login("secret", "we")),
    ),
    ("embedded:", EmbeddedAddress(".keylane")),
    ("embedded:a folder", EmbeddedAddress("a folder")),
    ("embedded:/var/lib/keylane", EmbeddedAddress("/var/lib/keylane")),
]

MISTAKES = [
    ("", "begins with none of"),
    ("localhost:6379", "begins with none of"),
    (".keylane", "begins with none of"),
    ("http://host", "begins with none of"),
    ("redis+unix://x", "begins with none of"),
    ("redis:host", "lacks //"),
    ("redis://ho st", "white space"),
    ("redis://host\n", "white space"),
    ("redis://host:port", "port"),
    ("redis://host:0", "port"),
    ("redis://host:65536", "port"),
    ("redis://host:٣", "port"),
    ("redis://[::1", "host part"),
    ("redis://[::1]x", "host part|IPv6"),
    ("redis://:secret", "no host|port"),
    ("redis://host/name", "database"),
    ("redis://host/1?db=2", "database twice"),
    ("redis://host?db=1&db=2", "twice"),
    ("redis://host?db", "name=value"),
    ("redis://host?socket_timeout=1", "none of db"),
    ("redis://host?ssl_ca_certs=/x", "none of db"),
    ("redis://host#0", "%23"),
    ("redis://h1,h2", "redis\\+cluster"),
    ("rediss://host?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
    ("rediss://host?ssl_check_hostname=maybe", "ssl_check_hostname"),
    ("rediss://host?ssl_keyfile=/k", "without the ssl_certfile"),
    ("redis://me:1/2@host", "percent-encoded"),
    ("redis://me:1?db=2@host", "percent-encoded"),
    ("unix://run/redis.sock", "three slashes"),
    ("unix://", "path of the socket"),
    ("redis+cluster://", "no host"),
    ("redis+cluster://h1,,h2", "no host"),
    ("redis+cluster://h1/1", "database 0 only"),
    ("redis+sentinel://h1", "name of the service"),
    ("redis+sentinel://h1/a/b", "name of the service"),
    ("redis+sentinel://h1/main?sentinel_username=we", "without a sentinel_password"),
    ("redis+cluster://h1?sentinel_password=x", "none of db"),
    ("embedded:///var", "without //"),
]

LEAKING = [
    "redis://me:s3cr3t@host:port",
    "redis://me:s3cr3t/x@host",
    "redis://me:1/s3cr3t@host",
    "redis://me:s3cr3t?x@host",
    "redis://me:1?s3cr3t=1@host",
    "redis://me:s3cr3t#x@host",
    "redis://me:1#s3cr3t@host",
    "redis://me:[s3cr3t@host",
    "redis://me:s3cr3t℀@host",
    "redis://:s3cr3t",
    "rediss+cluster://me:s3cr3t@h1:x,h2",
    "redis+sentinel://me:s3cr3t@h1",
    "redis+sentinel://h1/main?sentinel_password=x&s3cr3t",
    "redis+sentinel://h1/main?sentinel_password=x@s3cr3t",
    "unix://me:s3cr3t@host/path",
    "unix://me:s3cr3t/x@/path",
    "redis:me:s3cr3t@host",
    "redis//me:s3cr3t@host",
]


@pytest.mark.parametrize(("url", "expected"), FORMS)
def test_each_documented_form_is_read_into_its_address(url: str, expected: StoreAddress) -> None:
    """Every form of the documentation has one meaning."""
    assert parse_store_url(url) == expected


@pytest.mark.parametrize(("url", "expected"), FORMS)
def test_an_address_prints_as_a_url_that_means_the_same_except_for_its_secrets(
    url: str, expected: StoreAddress
) -> None:
    """What is printed can be typed again, with the password put in."""
    printed = str(expected)

    assert "secret" not in printed
    hides = "***" in printed
    if isinstance(expected, EmbeddedAddress) or (not hides and expected.access.tls in {None, Tls()}):
        assert parse_store_url(printed) == expected


@pytest.mark.parametrize(("url", "part"), MISTAKES)
def test_a_malformed_url_is_refused_naming_the_part(url: str, part: str) -> None:
    """The message says what was wrong."""
    with pytest.raises(StoreError, match=part):
        parse_store_url(url)


@pytest.mark.parametrize("url", LEAKING)
def test_no_message_about_a_malformed_url_shows_its_password(url: str) -> None:
    """Neither the error nor what it was raised from quotes the secret."""
    with pytest.raises(StoreError) as caught:
        parse_store_url(url)

    shown = [
        caught.value,
        caught.value.__cause__,
        None if caught.value.__suppress_context__ else caught.value.__context__,
    ]
    assert "s3cr3t" not in " ".join(f"{error} {error!r}" for error in shown)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:s3cr3t@h",
        "unix://me:s3cr3t@/p",
        "rediss+cluster://me:s3cr3t@h1,h2",
        "redis+sentinel://me:s3cr3t@h1/main?sentinel_username=we&sentinel_password=s3cr3t",
    ],
)
def test_a_password_is_in_neither_str_nor_repr_of_an_address(url: str) -> None:
    """An address may be logged."""
    address = parse_store_url(url)

    assert "s3cr3t" not in f"{address} {address!r}"
    assert "me:***@" in str(address)


@pytest.mark.parametrize(
    ("url", "greetings"),
    [
        ("redis+sentinel://h1/main?db=2", [Access()]),
        ("redis+sentinel://me:p@h1/main?db=2", [Access(), Access("me", "p")]),
        ("redis+sentinel://me:p@h1/main?sentinel_password=q", [Access(password="q")]),
        ("redis+sentinel://h1/main?sentinel_username=we&sentinel_password=q", [Access("we", "q")]),
        ("rediss+sentinel://h1/main?ssl_ca_certs=/ca", [Access(tls=Tls("/ca"))]),
    ],
)
def test_sentinels_are_greeted_with_their_own_password_or_none_or_that_of_the_servers(
    url: str, greetings: list[Access]
) -> None:
    """In this order; one that has a password of its own hears no other."""
    address = parse_store_url(url)

    assert isinstance(address, SentinelAddress)
    assert list(address.greetings) == greetings


def test_an_address_survives_pickling_with_its_password() -> None:
    """A worker process can be handed the address."""
    address = parse_store_url("redis://me:secret@host")

    assert pickle.loads(pickle.dumps(address)) == address  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix://me:p@/run/s?db=1", {"path": "/run/s", "username": "me", "password": "p", "db": 1}),
        ("redis://h:1", {"host": "h", "port": 1, "username": None, "password": None, "db": 0}),
        ("rediss://h:1?ssl_ca_certs=/ca", {"host": "h", "port": 1, "username": None, "password": None, "db": 0}),
    ],
)
def test_an_address_becomes_the_options_of_a_connection(url: str, expected: dict[str, object]) -> None:
    """The client library is given exactly what the URL said."""
    address = parse_store_url(url)

    assert isinstance(address, ServerAddress | SocketAddress)
    assert connection_options(address) == expected
