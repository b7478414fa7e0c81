"""`keylane approvals`: what is proposed is listed and shown, and decided; the verdict is the exit code."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import anyio
import pytest

from keylane import Client
from keylane.runtime.cli.approvals import UNKNOWN
from tests.runtime.shell_command import Command, run

pytestmark = pytest.mark.anyio

CATALOGUE = "tests.approvals_catalogue:app"


@pytest.fixture(scope="module")
def where(store_url: str) -> Iterator[tuple[str, ...]]:
    """Options that find a deployment with a worker."""
    options = ("--store", store_url, "--namespace", f"test-{secrets.token_hex(6)}")
    with Command("worker", CATALOGUE, *options) as worker:
        anyio.run(worker.says, "ready ")
        yield options


@pytest.mark.slow
async def test_the_shell_lists_shows_and_decides(where: tuple[str, ...]) -> None:
    """Exit code 0 for what counts and 1 for everything else; with --json the verdict is an object."""
    async with Client(where[1], namespace=where[3]) as client:
        handle = await client.send("Desk", "acme/1", "ask", 2)
        while not await client.approvals("Desk", "acme/1"):
            await handle.accepted(timeout=10)
        name = "Desk/acme/1#refund.1"

        listed = run("approvals", "list", *where)
        assert listed.code == 0
        assert name in listed.out
        assert "nobody (of 2)" in listed.out
        (only,) = run("approvals", "list", "Desk", "--json", *where).json
        assert (only["id"], only["standing"], only["proposal"]["fields"]) == (name, "open", {"amount": "40.00"})

        for names in (("--type", "Desk"), ("Desk", "acme/1"), ("acme/1", "--type", "Desk")):
            assert [each["id"] for each in run("approvals", "list", *names, "--json", *where).json] == [name]
        assert run("approvals", "list", "--type", "Other", *where).code == 1
        assert run("approvals", "list", "Desk", "acme/1", "--type", "Desk", *where).code == 2

        refused = run("approvals", "approve", name, "--by", "eve", *where)
        assert (refused.code, refused.out.strip()) == (1, "not-permitted: eve may not approve this")
        first = run("approvals", "approve", name, "--by", "ann", "--message-id", "m", *where)
        assert (first.code, first.out.strip()) == (0, "accepted: the proposal is open still")
        again = run("approvals", "approve", name, "--by", "ann", "--message-id", "m", *where)
        assert (again.code, again.out) == (0, first.out)
        given = run("approvals", "delegate", name, "--by", "bob", "--to", "temp", "--json", *where)
        assert (given.code, given.json["verdict"]) == (0, "accepted")
        second = run("approvals", "approve", name, "--by", "temp", "--on-behalf-of", "bob", *where)
        assert (second.code, second.out.strip()) == (0, "accepted: the proposal is approved")
        assert await handle.result(timeout=10) == ["ann", "bob"]

        late = run("approvals", "decline", name, "--by", "ann", "--reason", "no", "--json", *where)
        assert (late.code, late.json["verdict"], late.json["by"]) == (1, "already-decided", "temp for bob")
        back = run("approvals", "revoke", name, "--by", "ann", "--reason", "a fraud", *where)
        assert (back.code, back.out.strip()) == (0, "accepted: the proposal is revoked")
        shown = run("approvals", "show", name, *where)
        assert shown.code == 0
        for words in ("revoked", '"40.00"', "approved by ann", "delegated by bob: to temp", "revoked by ann: a fraud"):
            assert words in shown.out
        nothing = run("approvals", "show", "Desk/acme/1#refund.9", *where)
        assert (nothing.code, nothing.out.strip()) == (1, f"unknown{UNKNOWN}")
        assert run("approvals", "approve", "Nobody/acme/1#refund.1", "--by", "ann", *where).out == nothing.out
        assert run("approvals", "list", *where).out.strip() == "nothing waits for a decision"
        assert run("approvals", "show", "nothing", *where).code == 2
