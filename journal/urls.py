"""Store URLs, read into addresses that never show a password.

    redis://[user:password@]host[:port][/database]         rediss:// with TLS
    unix://[user:password@]/path/of/the/socket[?db=0]
    redis+cluster://host:port,host:port                    rediss+cluster://
    redis+sentinel://host:port,host:port/service[?db=0]    rediss+sentinel://
        [&sentinel_password=…[&sentinel_username=…]]       where sentinels have one that is not that of the servers
    embedded:[folder]                                      the folder defaults to .keylane

`valkey` in front is read as `redis`. What was wrong with a URL is said without quoting the parts
that could hold a password written unescaped.
"""

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, assert_never
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from .errors import StoreError
from .utf8 import utf8_bytes

DEFAULT_FOLDER = ".keylane"
DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379

_SCHEME = re.compile(
    r"(?:redis|valkey)(?P<tls>s?)(?:\+(?P<kind>cluster|sentinel))?|(?P<unix>unix)|(?P<embedded>embedded)"
)
_FORMS = "redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded:"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_CERTIFICATE_CHECKS = ("required", "optional", "none")


class Kind(StrEnum):
    """The shapes in which a store is reached."""

    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class Host:
    """One host and port."""

    name: str
    port: int

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server's certificate is checked and which one is shown to it; None leaves the default."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    cert_reqs: str = "required"
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """What is said to the server after connecting; the password stays out of repr and str."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: Tls | None = None

    @property
    def shown(self) -> str:
        """The part before the host, as it may be printed."""
        if self.password is None and self.username is None:
            return ""
        secret = "" if self.password is None else ":***"
        return f"{quote(self.username or '', safe='')}{secret}@"


@dataclass(frozen=True, slots=True)
class Login:
    """What is said to sentinels that have a password of their own, which stays out of repr and str."""

    password: str = field(repr=False)
    username: str | None = None

    @property
    def shown(self) -> str:
        """The options of the URL, as they may be printed."""
        name = "" if self.username is None else f"&sentinel_username={quote(self.username, safe='')}"
        return f"{name}&sentinel_password=***"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server at a host and port."""

    host: Host
    access: Access

    def __str__(self) -> str:
        return f"{_scheme(self.access)}://{self.access.shown}{self.host}/{self.access.database}"


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """One server at a unix socket."""

    path: str
    access: Access

    def __str__(self) -> str:
        database = f"?db={self.access.database}" if self.access.database else ""
        return f"unix://{self.access.shown}{quote(self.path)}{database}"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Some nodes of a cluster, from which the others are learned."""

    hosts: tuple[Host, ...]
    access: Access

    def __str__(self) -> str:
        return f"{_scheme(self.access)}+cluster://{self.access.shown}{_joined(self.hosts)}"


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """The sentinels that know the primary of a service.

    Args:
        hosts: The sentinels.
        service: Its name.
        access: To the servers.
        login: To the sentinels, where they have one of their own.
    """

    hosts: tuple[Host, ...]
    service: str
    access: Access
    login: Login | None = None

    @property
    def greetings(self) -> tuple[Access, ...]:
        """How to greet a sentinel, until one is accepted: databases they have none.

        Where nothing is said of them, most have no password, others that of the servers.
        """
        bare = replace(self.access, username=None, password=None, database=0)
        if self.login is not None:
            return (replace(bare, username=self.login.username, password=self.login.password),)
        return (bare,) if self.access.password is None else (bare, replace(self.access, database=0))

    def __str__(self) -> str:
        place = f"{self.access.shown}{_joined(self.hosts)}/{quote(self.service, safe='')}"
        login = "" if self.login is None else self.login.shown
        return f"{_scheme(self.access)}+sentinel://{place}?db={self.access.database}{login}"


@dataclass(frozen=True, slots=True)
class EmbeddedAddress:
    """The folder of an embedded server."""

    folder: str

    def __str__(self) -> str:
        return f"embedded:{self.folder}"


StoreAddress = ServerAddress | SocketAddress | ClusterAddress | SentinelAddress | EmbeddedAddress


def parse_store_url(url: str) -> StoreAddress:
    """Read a store URL.

    Raises:
        StoreError: The URL has none of the known forms; the message says which part is wrong.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
        raise StoreError(f"the store is named by a URL, which is text, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    known = _SCHEME.fullmatch(scheme.lower()) if colon else None
    if known is None:
        raise StoreError(f"the store URL begins with none of {_FORMS}")
    if known["embedded"]:
        return _embedded(rest)
    if not rest.startswith("//"):
        raise StoreError(f"the store URL lacks // after {scheme}:")
    parts = _split(url)
    if known["unix"]:
        return _socket(parts)
    return _network(Kind(known["kind"] or "server"), parts, has_tls=bool(known["tls"]))


def _split(url: str) -> SplitResult:
    if not url.isprintable() or " " in url:
        raise StoreError("the store URL contains white space or a control character: write it percent-encoded")
    try:
        return urlsplit(url)
    except ValueError:
        # Not chained: the original quotes the part that holds the password.
        raise StoreError("the store URL has no readable host part; an IPv6 address is written [address]:port") from None


def connection_options(address: ServerAddress | SocketAddress) -> dict[str, Any]:
    """Return the address in the words of redis-py's connection classes, all but TLS."""
    access = address.access
    options: dict[str, Any] = {"username": access.username, "password": access.password, "db": access.database}
    match address:
        case SocketAddress(path=path):
            return {**options, "path": path}
        case ServerAddress(host=host):
            return {**options, "host": host.name, "port": host.port}
        case _:
            assert_never(address)


def _embedded(rest: str) -> EmbeddedAddress:
    if rest.startswith("//"):
        raise StoreError("an embedded store is written embedded:folder or embedded:/absolute/folder, without //")
    if "\0" in rest or utf8_bytes(rest) is None:
        raise StoreError("the folder of the embedded store has a character that no URL can carry: name another one")
    return EmbeddedAddress(rest or DEFAULT_FOLDER)


def _socket(parts: SplitResult) -> SocketAddress:
    credentials, at, host = parts.netloc.rpartition("@")
    if host:
        raise StoreError("a unix:// URL names a host; write unix:///path/of/the/socket, with three slashes")
    if parts.fragment:
        raise StoreError("the store URL contains #: write it as %23")
    path = unquote(parts.path)
    if not path.strip("/"):
        raise StoreError("a unix:// URL needs the path of the socket: unix:///path/of/the/socket")
    options = _options(parts.query, known=("db",))
    return SocketAddress(path, _access(credentials if at else None, options, tls=None))


def _network(kind: Kind, parts: SplitResult, *, has_tls: bool) -> ServerAddress | ClusterAddress | SentinelAddress:
    if "@" in parts.path + parts.query + parts.fragment:
        raise StoreError("the store URL has an @ after the host: write / ? # and @ in a password percent-encoded")
    if parts.fragment:
        raise StoreError("the store URL contains #: write it as %23")
    credentials, at, places = parts.netloc.rpartition("@")
    options = _options(parts.query, known=_known(kind, has_tls=has_tls))
    tls = _tls(options) if has_tls else None
    path = unquote(parts.path).strip("/")
    if kind is not Kind.SENTINEL and path:
        options = _with_database(options, path)
    access = _access(credentials if at else None, options, tls=tls)
    match kind:
        case Kind.SERVER:
            return ServerAddress(_host(places or "localhost", DEFAULT_PORT), access)
        case Kind.CLUSTER:
            return _cluster(places, access)
        case Kind.SENTINEL:
            return _sentinel(places, path, access, _login(options))
        case _:
            assert_never(kind)


def _known(kind: Kind, *, has_tls: bool) -> tuple[str, ...]:
    own = _SENTINEL_OPTIONS if kind is Kind.SENTINEL else ()
    return ("db", *own, *_TLS_OPTIONS) if has_tls else ("db", *own)


def _cluster(places: str, access: Access) -> ClusterAddress:
    if access.database:
        raise StoreError("a cluster has database 0 only")
    return ClusterAddress(_hosts(places, DEFAULT_PORT), access)


def _sentinel(places: str, service: str, access: Access, login: Login | None) -> SentinelAddress:
    if not service or "/" in service:
        raise StoreError(
            "a redis+sentinel:// URL ends with the name of the service: redis+sentinel://host:26379/service"
        )
    return SentinelAddress(_hosts(places, DEFAULT_SENTINEL_PORT), service, access, login)


def _login(options: dict[str, str]) -> Login | None:
    username, password = options.get("sentinel_username"), options.get("sentinel_password")
    if password is not None:
        return Login(password, username)
    if username is not None:
        raise StoreError("the store URL gives a sentinel_username without a sentinel_password")
    return None


def _hosts(places: str, default_port: int) -> tuple[Host, ...]:
    return tuple(_host(place, default_port) for place in places.split(","))


def _host(place: str, default_port: int) -> Host:
    if "," in place:
        raise StoreError("the store URL lists several hosts: write redis+cluster:// or redis+sentinel://")
    name, port = _split_port(place)
    if not name:
        raise StoreError("the store URL names no host where one is needed")
    return Host(name, _port(port) if port else default_port)


def _split_port(place: str) -> tuple[str, str]:
    if place.startswith("["):
        name, bracket, port = place[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise StoreError("the store URL has an IPv6 address that is not written as [address]:port")
        return name, port[1:]
    name, _, port = place.partition(":")
    return unquote(name), port


def _port(text: str) -> int:
    if text.isascii() and text.isdecimal() and 0 < int(text) < 2**16:
        return int(text)
    raise StoreError("the port of the store URL is no number from 1 to 65535")


def _options(query: str, known: tuple[str, ...]) -> dict[str, str]:
    try:
        # A + stands for itself, as in the rest of the URL: passwords and paths may have one.
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise StoreError("what follows the ? of the store URL is not written as name=value") from None
    for name, _ in pairs:
        if name not in known:
            raise StoreError(f"the store URL has an option that is none of {', '.join(known)}")
    options = dict(pairs)
    if len(options) < len(pairs):
        raise StoreError("the store URL gives an option twice")
    return options


def _with_database(options: dict[str, str], path: str) -> dict[str, str]:
    if "db" in options:
        raise StoreError("the store URL gives the database twice, as /number and as db=")
    return {**options, "db": path}


def _access(credentials: str | None, options: dict[str, str], tls: Tls | None) -> Access:
    database = options.get("db", "0")
    if not (database.isascii() and database.isdecimal()):
        raise StoreError("the database of the store URL is no number")
    username, colon, password = (credentials or "").partition(":")
    return Access(
        username=unquote(username) or None,
        password=unquote(password) if colon else None,
        database=int(database),
        tls=tls,
    )


def _tls(options: dict[str, str]) -> Tls:
    checks = options.get("ssl_cert_reqs", "required")
    if checks not in _CERTIFICATE_CHECKS:
        raise StoreError(f"ssl_cert_reqs of the store URL is none of {', '.join(_CERTIFICATE_CHECKS)}")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise StoreError("the store URL gives an ssl_keyfile without the ssl_certfile that it belongs to")
    check_hostname = options.get("ssl_check_hostname", "false" if checks == "none" else "true").lower()
    if check_hostname not in {"true", "false"}:
        raise StoreError("ssl_check_hostname of the store URL is neither true nor false")
    return Tls(
        ca_certs=options.get("ssl_ca_certs"),
        certfile=options.get("ssl_certfile"),
        keyfile=options.get("ssl_keyfile"),
        cert_reqs=checks,
        check_hostname=check_hostname == "true",
    )


def _scheme(access: Access) -> str:
    return "redis" if access.tls is None else "rediss"


def _joined(hosts: tuple[Host, ...]) -> str:
    return ",".join(str(host) for host in hosts)
