"""What has come for an invocation, told by its records alone."""

from __future__ import annotations

from keylane.journal.command_records import AwakeableMade, WaitCompleted, WaitExpired, WaitStarted, WaitWithdrawn
from keylane.journal.mail import Mail
from keylane.journal.records import Record, SignalReceived

VALUE = b"\x92\x40\xc4\x01\x01"


def signal(number: int, name: str = "go") -> SignalReceived:
    return SignalReceived(name, None, bytes([number]) * 16, VALUE, f"sender {number}")


def completed(index: int, number: int, *, of_object: bool = False) -> WaitCompleted:
    return WaitCompleted(index, bytes([number]) * 16, VALUE, f"sender {number}", of_object=of_object)


def mail_of(*records: Record) -> Mail:
    mail = Mail()
    for at_ms, record in enumerate(records, start=1):
        mail.note(record, at_ms)
    return mail


def numbers(mail: Mail) -> list[int]:
    return [each.message[0] for each in mail.early]


def test_early_signals_stay_in_order_until_a_wait_takes_them() -> None:
    """By their names; a message that was taken is known still."""
    mail = mail_of(signal(1), signal(2, "other"), signal(3), WaitStarted(0, "go"), completed(0, 1))

    assert numbers(mail) == [2, 3]
    assert mail.first("go") == signal(3)
    assert mail.first("nothing") is None
    assert all(mail.has(bytes([number]) * 16) for number in (1, 2, 3))
    assert not mail.has(b"\x09" * 16)


def test_what_a_lost_wait_had_got_comes_back_in_its_old_place() -> None:
    """Ahead of those that came later; one of the object goes back to the object instead."""
    came = (WaitStarted(0, "go"), completed(0, 1), signal(2), signal(3))

    assert numbers(mail_of(*came, WaitWithdrawn(0))) == [1, 2, 3]
    assert numbers(mail_of(*came, WaitWithdrawn(0), WaitWithdrawn(0))) == [1, 2, 3]
    of_object = mail_of(WaitStarted(0, "go"), completed(0, 1, of_object=True), signal(2), WaitWithdrawn(0))
    assert numbers(of_object) == [2]
    assert of_object.taken(0) is None


def test_a_wait_that_is_withdrawn_before_anything_came_gives_nothing_back() -> None:
    """Nor does it stay open."""
    mail = mail_of(WaitStarted(0, "go"), WaitWithdrawn(0))

    assert numbers(mail) == []
    assert mail.waiting_since_ms(0) == 0
    assert mail_of(WaitStarted(0, "go")).waiting_since_ms(0) == 1


def test_an_awakeable_is_completed_once_by_the_first() -> None:
    """With or without a wait for it; what has expired is known as that."""
    early = mail_of(AwakeableMade(0), SignalReceived("", 0, b"a" * 16, VALUE, "ana"), completed(1, 1))
    direct = mail_of(AwakeableMade(0), WaitStarted(1, "", 0), WaitCompleted(1, b"b" * 16, VALUE, "bob"))
    expired = mail_of(AwakeableMade(0), WaitStarted(1, "", 0, 10), WaitExpired(1))

    assert early.awakeables[0].completed is not None
    assert early.awakeables[0].completed.by == "ana"
    assert direct.awakeables[0].completed is not None
    assert direct.awakeables[0].completed_ms == 3
    assert direct.completion(0) is not None
    assert expired.awakeables[0].expired_ms == 3
    assert expired.completion(0) is None
    assert expired.completion(7) is None


def test_what_does_not_count_any_more_leaves_what_came_from_outside() -> None:
    """Its waits and awakeables are gone, and the signals that they had got wait again."""
    records: list[Record] = [AwakeableMade(0), WaitStarted(1, "", 0, 10), WaitExpired(1), AwakeableMade(2)]
    records += [WaitStarted(3, "go"), completed(3, 1), WaitStarted(4, "go")]
    mail = mail_of(*records)
    mail.drop(records[1:])

    assert set(mail.awakeables) == {0}
    assert mail.awakeables[0].expired_ms is None
    assert numbers(mail) == [1]
    assert mail.waiting_since_ms(4) == 0
