"""Connections with TLS share one context: to make one reads the whole list of CAs, which holds up the event loop.

And they go by the files as they are by then: certificates are renewed while workers run.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from .urls import Tls

_CHECKS: Final = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}

#: Changes when a file is replaced or written anew.
_State: TypeAlias = tuple[int, int, int]


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return the context of connections that are made now.

    Raises:
        OSError: One of the files can't be read.
    """
    files = (tls.ca_certs, tls.certfile, tls.keyfile)
    return _made(tls, tuple(_state(file) for file in files if file is not None))


@lru_cache(maxsize=8)
def _made(tls: Tls, states: tuple[_State, ...]) -> ssl.SSLContext:
    del states
    context = ssl.create_default_context(cafile=tls.ca_certs)
    # In this order: a context that checks host names checks certificates.
    context.check_hostname = tls.check_hostname and tls.cert_reqs != "none"
    context.verify_mode = _CHECKS[tls.cert_reqs]
    if tls.certfile is not None:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    return context


def _state(file: str) -> _State:
    found = Path(file).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
