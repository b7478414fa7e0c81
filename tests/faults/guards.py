"""What keeps strangers out of test servers: passwords, and certificates that a CA of the test's own has signed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

#: Until the test ends, and no longer: nobody is to keep them.
_DAYS = "1"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """A CA's certificate, and one for 127.0.0.1 with its key, which servers and clients share.

    Args:
        folder: Where they lie.
    """

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate of the CA."""
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        """What it has signed."""
        return self.folder / "cert.pem"

    @property
    def key(self) -> Path:
        """The key of that one."""
        return self.folder / "key.pem"

    @property
    def settings(self) -> dict[str, str]:
        """How a server uses them, toward clients, replicas and other nodes; clients have to show one too."""
        return {
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.ca),
            "tls-auth-clients": "yes",
            "tls-replication": "yes",
        }


def made_certificates(folder: Path) -> Certificates:
    """Make a CA in a folder, and have it sign a certificate for 127.0.0.1."""
    made = Certificates(folder)
    authority = folder / "ca.key"
    _openssl(
        *("-keyout", authority, "-out", made.ca, "-subj", "/CN=keylane-tests"),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    _openssl(
        *("-CA", made.ca, "-CAkey", authority, "-keyout", made.key, "-out", made.certificate, "-subj", "/CN=server"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"),
    )
    return made


def _openssl(*words: str | Path) -> None:
    command = ("openssl", "req", "-x509", "-days", _DAYS, *_NEW_KEY, *map(str, words))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, slots=True)
class Guard:
    """What servers and sentinels ask of whoever connects; by default nothing.

    Args:
        password: That of the servers' default user.
        sentinel_password: That of the sentinels' default user.
        certificates: Makes them speak TLS only; needs a server program that can.
        binary: The server program, by default the bundled one.
    """

    password: str | None = None
    sentinel_password: str | None = None
    certificates: Certificates | None = None
    binary: str | None = None

    def listening(self, port: int) -> dict[str, str]:
        """Return the settings by which a server or a sentinel listens on a port."""
        if self.certificates is None:
            return {"port": str(port)}
        return {"port": "0", "tls-port": str(port), **self.certificates.settings}

    @property
    def server_settings(self) -> dict[str, str]:
        """The settings of a server: replicas have to show its password to each other."""
        return {} if self.password is None else {"requirepass": self.password, "masterauth": self.password}

    @property
    def cluster_settings(self) -> dict[str, str]:
        """Those of a node of a cluster beside them."""
        return {} if self.certificates is None else {"tls-cluster": "yes"}

    def sentinel_settings(self, service: str) -> dict[str, str]:
        """Return the settings of a sentinel; among each other they use their own password."""
        own = {} if self.sentinel_password is None else {"requirepass": self.sentinel_password}
        return own if self.password is None else {**own, f"sentinel auth-pass {service}": self.password}

    @property
    def sentinel_client(self) -> dict[str, Any]:
        """How a client of the test connects to a sentinel."""
        tls = self.certificates
        options = {} if tls is None else _shown(tls)
        return {"password": self.sentinel_password, "ssl": tls is not None, **options}


def _shown(tls: Certificates) -> dict[str, str]:
    return {"ssl_ca_certs": str(tls.ca), "ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}


def as_options(settings: dict[str, str]) -> tuple[str, ...]:
    """Return settings as options of a server's command line."""
    return tuple(word for name, value in settings.items() for word in (f"--{name}", value))


#: Everybody may come in.
OPEN = Guard()
