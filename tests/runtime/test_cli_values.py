"""JSON at the edge of the shell: what goes in comes out, and what JSON lacks has one form."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from keylane.journal.codec import pack, unpack
from keylane.runtime.cli.output import shown, size
from keylane.runtime.cli.values import NotJson, as_json, from_json, to_json


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("40.00"), "40.00"),
        (b"\xff\xfe>?", "//4+Pw=="),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(1, 2, 3), "01:02:03"),
        (timedelta(days=1, seconds=2), "P1DT2S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (2**70, 2**70),
        ((1, "a"), [1, "a"]),
        ({3}, [3]),
        (float("inf"), "inf"),
        ({1: b"a", (1, 2): None}, {"1": "YQ==", "[1, 2]": None}),
        ({"nested": [{"at": date(2026, 1, 2)}]}, {"nested": [{"at": "2026-01-02"}]}),
    ],
)
def test_each_type_of_the_codec_has_one_form_in_json(value: object, expected: object) -> None:
    """Also after it has been packed, which is what the shell gets to see."""
    assert to_json(value) == expected
    assert to_json(unpack(pack(value))) == expected


def test_text_for_people_keeps_the_letters_of_all_languages() -> None:
    """They are read, not parsed."""
    assert as_json({"name": "Zoë"}) == '{"name": "Zoë"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"amount": "40.00", "n": 1, "deep": [null, true]}', {"amount": "40.00", "n": 1, "deep": [None, True]}),
        ('{"$base64": "//4+Pw=="}', b"\xff\xfe>?"),
        ('{"data": {"$base64": "YQ=="}}', {"data": b"a"}),
        ('{"$base64": "YQ==", "other": 1}', {"$base64": "YQ==", "other": 1}),
    ],
)
def test_json_is_read_as_it_stands_and_marked_bytes_as_bytes(text: str, value: Any) -> None:
    """A plain string would be taken for the bytes of its UTF-8."""
    assert from_json(text) == value


@pytest.mark.parametrize(
    "text", ["", "{amount: 1}", "NaN", "[Infinity]", '{"$base64": "!"}', '{"$base64": 5}', "[" * 99_999]
)
def test_what_is_no_json_is_said_so(text: str) -> None:
    """Whatever is wrong with it."""
    with pytest.raises(NotJson):
        from_json(text)


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    """Names and messages come from anybody."""
    assert shown("a\x1b[31mred\nnext\x07 Zoë") == "a\\x1b[31mred next\\x07 Zoë"


@pytest.mark.parametrize(("size_bytes", "text"), [(None, ""), (999, "999 B"), (1_500, "1.5 kB"), (2_000_000, "2.0 MB")])
def test_sizes_are_short(size_bytes: int | None, text: str) -> None:
    """For a column of a table."""
    assert size(size_bytes) == text
