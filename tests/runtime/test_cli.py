"""The `keylane` command against real workers: what it prints, and the code with which it ends."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.objects_catalogue import marks
from tests.runtime.deployment import SHOP, Deployment
from tests.runtime.shell_command import ROOT, Command, run, words

pytestmark = pytest.mark.anyio

PASSWORD = "hunter2-secret"


@pytest.fixture(scope="module")
def hosted(store_url: str) -> Iterator[Deployment]:
    """A deployment whose worker all tests share that leave it alone."""
    deployment = Deployment(store_url, f"test-{secrets.token_hex(6)}")
    with deployment.worker() as worker:
        anyio.run(worker.says, "ready ")
        yield deployment


@pytest.fixture
def deployment(store_url: str, namespace: str) -> Deployment:
    """A deployment of the test's own, without a worker."""
    return Deployment(store_url, namespace)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with an app."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def test_call_prints_the_output(hosted: Deployment) -> None:
    """As JSON, for people and for programs."""
    plain = hosted.run("call", "Counter", "acme/called", "add", "5")
    for_programs = hosted.run("call", "Counter", "acme/called", "add", "5", "--json")
    without_argument = hosted.run("call", "Counter", "acme/called", "get")

    assert (plain.code, plain.out, plain.err) == (0, "5\n", "")
    assert (for_programs.code, for_programs.json) == (0, {"result": 10})
    assert (without_argument.code, without_argument.out) == (0, "10\n")


def test_call_takes_and_gives_typed_values_as_json(hosted: Deployment) -> None:
    """Decimals and times as strings, bytes as base64, everything back as it was."""
    value = {
        "items": [{"amount": "40.00", "note": None}],
        "by_name": {"a": {"amount": "0.10", "note": "x"}},
        "colour": "red",
        "at": "2026-01-02T03:04:05.000006Z",
        "raw": {"$base64": "//4="},
        "large": 2**70,
        "pair": [1, "one"],
        "kinds": [3],
    }

    echoed = hosted.run("call", "Typed", "acme/typed", "echo", "-", "--json", stdin=json.dumps(value))

    assert echoed.code == 0, echoed.err
    assert echoed.json["result"] == {**value, "raw": "//4="}


def test_a_bad_input_names_the_path_of_the_field(hosted: Deployment) -> None:
    """The owner has the types; the answer is no."""
    done = hosted.run("call", "Typed", "acme/typed", "echo", '{"items": [{"amount": "much"}]}')
    for_programs = hosted.run("call", "Counter", "acme/typed", "add", '"much"', "--json")

    assert (done.code, done.out) == (1, "")
    assert "items[0].amount" in done.err
    assert len(done.err.splitlines()) == 1
    assert for_programs.code == 1
    assert (for_programs.error["error"], for_programs.error["path"]) == ("invalid-input", "amount")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("call", "Nothing", "acme/one", "add", "1"), 1, "'Nothing'"),
        (("call", "Counter", "acme/one", "nothing"), 1, "'nothing'"),
        (("call", "Counter", "no-tenant", "add", "1"), 2, "tenant/key"),
        (("call", "Counter", "acme/one", "add", "{amount: 1}"), 2, "not JSON"),
        (("call", "Counter", "acme/one"), 2, "HANDLER"),
        (("call", "Counter", "acme/one", "get", "--loud"), 2, "--loud"),
        (("attach", "no-id"), 2, "Order.3.019a"),
        (("describe", "no-id"), 2, "Order.3.019a"),
        (("describe", f"Counter.0.{'0' * 32}"), 1, ""),
        (("inspect", "Nothing", "acme/one"), 1, "'Nothing'"),
        (("resume", f"Counter.0.{'0' * 32}", "--reason", "r", "--by", "b"), 1, "not paused"),
        (("resume", f"Counter.0.{'0' * 32}", "--reason", " ", "--by", "b"), 2, "--reason"),
        (("restart", f"Counter.0.{'0' * 32}", "--keep", "9" * 20, "--reason", "r", "--by", "b"), 2, "--keep"),
        (("alerts", "--limit", "9" * 20), 2, "--limit"),
        (("reconcile", "show", "Counter", "acme/one", "\udcff"), 1, "lone surrogate"),
    ],
)
def test_a_no_and_a_wrong_use_have_codes_of_their_own_and_a_sentence(
    hosted: Deployment, arguments: tuple[str, ...], code: int, text: str
) -> None:
    """One clear sentence on stderr, and no traceback."""
    done = hosted.run(*arguments)

    assert done.code == code, done.err
    assert text in done.err
    assert "Traceback" not in done.err


def test_a_failed_invocation_is_told_with_code_and_details(hosted: Deployment) -> None:
    """For people in one line, for programs as JSON."""
    done = hosted.run("call", "Trouble", "acme/failing", "fail", '"no luck"')
    for_programs = hosted.run("call", "Trouble", "acme/failing", "fail", '"no luck"', "--json")

    assert (done.code, done.out) == (1, "")
    assert "no luck" in done.err
    assert "asked-to" in done.err
    assert for_programs.error["message"] == "no luck"
    assert (for_programs.error["code"], for_programs.error["details"]) == ("asked-to", {"key": "acme/failing"})


def test_send_attach_and_describe_follow_an_invocation(hosted: Deployment, tmp_path: Path) -> None:
    """By the id that `send` prints."""
    trail = tmp_path / "trail"
    sent = hosted.run("send", "Steps", "acme/sent", "three_steps", json.dumps(str(trail)))
    invocation = sent.out.strip()
    attached = hosted.run("attach", invocation, "--timeout", "10", "--json")
    described = hosted.run("describe", invocation, "--json").json
    for_people = hosted.run("describe", invocation)

    assert sent.code == attached.code == for_people.code == 0
    assert attached.json["result"] == [token for _, token in marks(trail)]
    assert (described["status"], described["key"], described["handler"]) == ("completed", "acme/sent", "three_steps")
    assert [step["name"] for step in described["steps"]] == ["first", "second", "third"]
    assert described["result"]["kind"] == "succeeded"
    for text in (f"{invocation}  completed", "Steps acme/sent", "first", "second", "third", "kept until"):
        assert text in for_people.out


def test_an_idempotency_key_gets_the_first_result(hosted: Deployment) -> None:
    """And another argument under it is refused, naming what differs."""
    call = ("call", "Counter", "acme/once", "add")
    first = hosted.run(*call, "5", "--idempotency-key", "k1")
    again = hosted.run(*call, "5", "--idempotency-key", "k1")
    other = hosted.run(*call, "6", "--idempotency-key", "k1", "--json")

    assert first.out == again.out == "5\n"
    assert (other.code, other.error["error"]) == (1, "idempotency-conflict")


async def test_inspect_shows_state_lane_and_journal(hosted: Deployment, tmp_path: Path) -> None:
    """Who holds the lane and why, who waits, what happened."""
    gate, key = tmp_path / "gate", "acme/inspected"
    hosted.run("call", "Counter", key, "add", "5")
    holder = (await hosted.begun("Counter", key, "add_and_hold", str(gate))).id
    waiting = (await hosted.begun("Counter", key, "add", 1)).id
    told, for_people = hosted.inspect("Counter", key), hosted.run("inspect", "Counter", key)
    gate.touch()

    assert hosted.run("attach", waiting, "--timeout", "10").out == "7\n"
    assert [each["id"] for each in told["lane"]["open"]] == [holder, waiting]
    assert told["lane"]["open"][0]["why"].startswith("runs at ")
    assert told["state"] == [{"name": "value", "size_bytes": 1, "value": 5}]
    assert [event["what"] for event in told["timeline"]] == ["completed", "accepted", "accepted"]
    assert told["in_charge"] == "catalogue"
    for text in ("Counter acme/inspected", "value", "held since", holder, f"waits behind {holder}", "add_and_hold"):
        assert text in for_people.out
    assert for_people.out == "\n".join(line.rstrip() for line in for_people.out.splitlines()) + "\n"


async def test_inspect_shows_as_much_of_the_journal_as_is_asked_for(hosted: Deployment) -> None:
    """And says that there is more."""
    async with hosted.client() as client:
        for _ in range(3):
            await client.call("Counter", "acme/long", "add", 1)

    told = hosted.run("inspect", "Counter", "acme/long", "--entries", "2")

    assert told.out.count("completed") == 2
    assert "a longer one" in told.out


def test_an_object_that_was_never_called_says_so(hosted: Deployment) -> None:
    """An empty page would leave open whether the key is right."""
    done = hosted.run("inspect", "Counter", "acme/never")

    assert done.code == 0
    assert "never called" in done.out


def test_a_paused_invocation_names_who_has_to_resume_it_and_how(hosted: Deployment, tmp_path: Path) -> None:
    """And goes on when somebody does."""
    trail = tmp_path / "trail"
    called = hosted.run("call", "Trouble", "acme/paused", "never_works", json.dumps(str(trail)), "--json")
    invocation = called.error["invocation_id"]
    described = hosted.run("describe", invocation)
    resumed = hosted.run("resume", invocation, "--reason", "try again", "--by", "ada", "--timeout", "10")
    attached = hosted.run("attach", invocation, "--timeout", "10", "--json")
    events = [event["what"] for event in hosted.inspect("Trouble", "acme/paused")["timeline"]]

    assert (called.code, called.error["error"], called.error["owner"]) == (1, "invocation-paused", "catalogue")
    assert f"keylane resume {invocation}" in described.out
    assert "ValueError: it never works" in described.out
    assert (resumed.code, resumed.out) == (0, f"{invocation} goes on\n")
    assert attached.error["reason"] == "retries_spent"
    assert events == ["accepted", "attempt failed", "paused", "resumed", "attempt failed", "paused"]
    assert len(marks(trail)) == 4


async def test_a_call_that_waits_says_what_for_and_a_timeout_gives_the_id(hosted: Deployment, tmp_path: Path) -> None:
    """A silent shell would leave a newcomer with nothing."""
    gate = tmp_path / "gate"
    holder = (await hosted.begun("Slow", "acme/held", "hold", str(gate))).id
    call = ("call", "Slow", "acme/held", "nap", "0", *hosted.where)
    with Command(*call, "--timeout", "4") as waiting, Command(*call) as interrupted:
        await waiting.says(f"still waiting: {holder} holds the lane")
        await interrupted.says("still waiting")
        interrupted.signal(signal.SIGINT)
        assert await interrupted.ended() == 130
        assert await waiting.ended() == 1
    gate.touch()

    assert "Traceback" not in interrupted.said
    assert "Slow." in waiting.errors[-1]


async def test_a_call_without_a_worker_says_that_there_is_none(deployment: Deployment) -> None:
    """The usual reason for a call without an answer."""
    with deployment.worker() as worker:
        await worker.says("ready ")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    with Command("call", "Counter", "acme/one", "get", *deployment.where) as call:
        await call.says("no worker holds this object's partition; start one with `keylane worker module:app`")


async def test_a_call_to_a_dead_worker_says_that_it_gives_no_sign(deployment: Deployment) -> None:
    """The store alone can't tell, but its lease stands still."""
    with deployment.worker() as worker:
        await worker.says("ready ")
        worker.signal(signal.SIGKILL)
        await worker.ended()
    with Command("call", "Counter", "acme/one", "get", *deployment.where) as call:
        await call.says("gives no sign of life")


def test_a_send_with_a_delay_is_scheduled_and_described_with_its_time(hosted: Deployment) -> None:
    """People and programs are told that it waits, and until when; a delay that is no time is wrong use."""
    sent = hosted.run("send", "Counter", "acme/later", "add", "5", "--delay", "3600")
    invocation = sent.out.strip()
    described = hosted.run("describe", invocation, "--json").json
    for _ in range(100):
        if described["status"] == "scheduled":
            break
        described = hosted.run("describe", invocation, "--json").json
    for_people = hosted.run("describe", invocation)

    assert (described["status"], described["place"]) == ("scheduled", "journal")
    assert described["waits_for"].startswith("is to begin later, until ")
    assert "is to begin later" in for_people.out
    assert hosted.run("send", "Counter", "acme/later", "add", "5", "--delay", "-1").code == 2
    assert hosted.run("send", "Counter", "acme/later", "add", "5", "--delay", "0").code == 0


async def test_a_send_without_a_worker_is_durable_and_described_as_waiting(deployment: Deployment) -> None:
    """It waits in the inbox, and the next worker runs it."""
    with deployment.worker() as first:
        await first.says("ready ")
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
    invocation = deployment.run("send", "Counter", "acme/one", "add", "5").out.strip()
    described = deployment.run("describe", invocation, "--json").json
    told = deployment.run("inspect", "Counter", "acme/one")
    with deployment.worker() as second:
        await second.says("ready ")
        attached = deployment.run("attach", invocation, "--timeout", "10")

    assert (described["place"], described["status"], described["handler"]) == ("inbox", "queued", "add")
    assert "worker" in described["note"]
    assert "in the inbox" in told.out
    assert attached.out == "5\n"


@pytest.mark.parametrize(
    "command",
    [("call", "Order", "acme/one", "double"), ("describe", f"Order.0.{'0' * 32}"), ("worker", "shop:app")],
)
def test_without_a_store_keylane_dev_is_named(shop: Path, command: tuple[str, ...]) -> None:
    """Only `dev` starts one."""
    done = run(*command, cwd=shop)

    assert done.code == 3
    assert "keylane dev" in done.err
    assert not (shop / ".keylane").exists()


def test_a_file_is_no_store(shop: Path) -> None:
    """Nobody runs a server on it, as on a folder that is not there."""
    done = run("call", "Order", "acme/one", "double", "1", "--store", "embedded:shop.py", cwd=shop)

    assert (done.code, "no server runs there" in done.err) == (3, True)


def test_the_store_may_be_named_by_the_environment(hosted: Deployment, tmp_path: Path) -> None:
    """As everywhere: the argument, else the variable, else the folder."""
    _, url, *namespace = hosted.where

    done = run("call", "Counter", "acme/env", "get", *namespace, cwd=tmp_path, env={"KEYLANE_REDIS_URL": url})

    assert (done.code, done.out) == (0, "0\n")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"unix://ada:{PASSWORD}@/nowhere/socket", 3),
        (f"redis://ada:{PASSWORD}@localhost:no-port", 2),
        (f"http://ada:{PASSWORD}@localhost", 2),
    ],
)
def test_no_output_ever_shows_a_password(url: str, code: int) -> None:
    """Whatever goes wrong, and with a traceback too."""
    done = run("call", "Counter", "acme/one", "get", "--store", url, "--debug")

    assert done.code == code, done.err
    assert "Traceback" in done.err
    assert PASSWORD not in done.out + done.err


@pytest.mark.parametrize(
    ("reference", "source", "text"),
    [
        ("nowhere:app", "", "nowhere"),
        ("shop:nothing", SHOP, "shop:app"),
        ("broken:app", "number = 1 / 0", "ZeroDivisionError"),
        ("shop/orders:app", "", "module:attribute"),
        ("number:app", "app = 5", "int"),
    ],
)
def test_a_wrong_app_is_wrong_use_and_says_what_was_found(
    tmp_path: Path, store_url: str, reference: str, source: str, text: str
) -> None:
    """In one sentence, without a traceback of our own code."""
    if source:
        (tmp_path / f"{reference.partition(':')[0]}.py").write_text(source)

    done = run("worker", reference, "--store", store_url, cwd=tmp_path)

    assert done.code == 2, done.err
    assert text in done.err
    assert "Traceback" not in done.err


def test_debug_shows_the_traceback_of_a_broken_app(tmp_path: Path, store_url: str) -> None:
    """Where the one sentence is not enough."""
    (tmp_path / "broken.py").write_text("number = 1 / 0\n")

    done = run("worker", "broken:app", "--store", store_url, "--debug", cwd=tmp_path)

    assert done.code == 2
    assert "Traceback" in done.err
    assert "broken.py" in done.err


def test_a_wrong_descriptor_and_two_stores_are_wrong_use(shop: Path) -> None:
    """Found before anything is started."""
    descriptor = run("worker", "shop:app", "--store", "unix:///nowhere/socket", "--ready-fd", "99", cwd=shop)
    stores = run("dev", "shop:app", "--store", "unix:///nowhere/socket", "--path", "data", cwd=shop)

    assert (descriptor.code, stores.code) == (2, 2)
    assert "99" in descriptor.err
    assert "--path" in stores.err


def test_output_survives_a_terminal_without_the_letters(hosted: Deployment, tmp_path: Path) -> None:
    """An escape is printed where a letter is lacking, and the command does not fail for it."""
    done = run(
        "call", "Trouble", "acme/Zoë", "fail", '"Zoë"', *hosted.where, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )

    assert done.code == 1
    assert r"Zo\xeb" in done.err


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(hosted: Deployment) -> None:
    """As `head` does: it has what it wanted, and nothing is anybody's fault."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            words(["inspect", "Counter", "acme/one", *hosted.where]),
            cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, text=True, check=False, timeout=30,
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("yesterday", "is no time"),
        ("2026-03-01T12:00:00", "does not say in which zone"),
        ("2999-01-01T00:00:00Z", "lies ahead"),
    ],
)
def test_restored_takes_a_moment_that_has_passed_and_nothing_else(store_url: str, text: str, what: str) -> None:
    """A time without a zone would be another one on another machine."""
    done = run("restored", "--from", text, "--store", store_url)

    assert done.code == 2
    assert what in done.err


def test_restored_says_that_there_is_nothing_to_declare(store_url: str, namespace: str) -> None:
    """A namespace that nobody has used has lost nothing."""
    words = ("restored", "--from", "2026-03-01T12:00:00Z", "--store", store_url, "--namespace", namespace, "--json")
    done = run(*words)

    assert done.code == 1
    assert done.json["partitions"] == []
