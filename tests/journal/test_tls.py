"""What TLS connections are made with: shared, made anew when a file changes, and as trusting as they are told."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from keylane.journal.tls import context_of
from keylane.journal.urls import Tls
from tests.faults.guards import Certificates, made_certificates, needs_openssl

pytestmark = needs_openssl


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return made_certificates(tmp_path)


def tls_of(certificates: Certificates) -> Tls:
    return Tls(str(certificates.ca), str(certificates.certificate), str(certificates.key))


def test_connections_share_a_context(certificates: Certificates) -> None:
    """To make one may take a tenth of a second, in which the event loop stands still."""
    assert context_of(tls_of(certificates)) is context_of(tls_of(certificates))
    assert context_of(tls_of(certificates)) is not context_of(Tls(str(certificates.ca)))


def test_certificates_that_were_renewed_are_shown_from_then_on(certificates: Certificates, tmp_path: Path) -> None:
    """A worker lives longer than its certificate."""
    before = context_of(tls_of(certificates))
    (tmp_path / "new").mkdir()
    renewed = made_certificates(tmp_path / "new")
    for old, new in zip(files_of(certificates), files_of(renewed), strict=True):
        shutil.copyfile(new, old)

    after = context_of(tls_of(certificates))

    assert after.get_ca_certs(binary_form=True) != before.get_ca_certs(binary_form=True)
    assert context_of(tls_of(certificates)) is after


def files_of(certificates: Certificates) -> tuple[Path, Path, Path]:
    return certificates.ca, certificates.certificate, certificates.key


def test_only_the_ca_that_is_named_is_trusted(certificates: Certificates) -> None:
    """Whoever names one does not want certificates of all the others; who names none trusts the system's."""
    assert context_of(Tls(str(certificates.ca))).cert_store_stats()["x509_ca"] == 1
    system = ssl.create_default_context().cert_store_stats()
    assert context_of(Tls()).cert_store_stats() == system


@pytest.mark.parametrize(
    ("tls", "mode", "checks_host"),
    [
        (Tls(), ssl.CERT_REQUIRED, True),
        (Tls(check_hostname=False), ssl.CERT_REQUIRED, False),
        (Tls(cert_reqs="optional"), ssl.CERT_OPTIONAL, True),
        (Tls(cert_reqs="none"), ssl.CERT_NONE, False),
    ],
)
def test_certificates_and_names_are_checked_as_the_url_says(
    tls: Tls, mode: ssl.VerifyMode, *, checks_host: bool
) -> None:
    """By default both are."""
    context = context_of(tls)

    assert (context.verify_mode, context.check_hostname) == (mode, checks_host)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """The library for TLS would not say which."""
    with pytest.raises(FileNotFoundError, match=r"none\.pem"):
        context_of(Tls(str(tmp_path / "none.pem")))
