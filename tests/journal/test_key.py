"""Keys, partitions and invocation ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.errors import InvalidKey
from keylane.journal.key import Key, format_id, is_name, new_invocation_id, parse_id, partition_of

ID = "Order.3.000102030405060708090a0b0c0d0e0f"
parts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)


@given(parts.filter(lambda text: "/" not in text), parts)
def test_the_text_form_of_a_key_reads_back(tenant: str, key: str) -> None:
    """Whatever a key holds, slashes in its second part too, its text form names the same object."""
    assert Key.parse(str(Key(tenant, key))) == Key(tenant, key)


def test_a_key_splits_at_the_first_slash() -> None:
    """The rest of the slashes belong to the key."""
    assert Key.parse("acme/orders/1001") == Key("acme", "orders/1001")


def test_a_key_is_taken_as_it_is() -> None:
    """Parsing a Key costs nothing and makes no copy."""
    key = Key("acme", "1")

    assert Key.parse(key) is key


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("o-1001", 'the tenant is missing; write "tenant/key"'),
        ("", "the tenant is missing"),
        ("/o-1", "the tenant is empty"),
        ("acme/", "the key is empty"),
        ("acme/" + "x" * 513, "has 513 bytes of UTF-8, at most 512"),
        ("é" * 257 + "/1", "the tenant has 514 bytes"),
        ("acme/\ud800", "lone surrogate"),
        (1001, 'write it as "tenant/key" or Key(tenant, key)'),
        (None, 'write it as "tenant/key"'),
        (b"acme/1", 'write it as "tenant/key"'),
    ],
)
def test_what_is_no_key_is_refused_with_reason_and_remedy(given: object, words: str) -> None:
    """The error says what is wrong with a key and what to write."""
    with pytest.raises(InvalidKey) as caught:
        Key.parse(given)

    assert words in str(caught.value)


@pytest.mark.parametrize(("tenant", "key"), [("a/b", "c"), ("", "c"), ("a", ""), ("a", 7), (None, "c")])
def test_a_key_made_of_parts_is_checked_too(tenant: str, key: str) -> None:
    """No Key exists that its text form could not name."""
    with pytest.raises(InvalidKey):
        Key(tenant, key)


def test_parts_of_exactly_the_limit_are_allowed() -> None:
    """512 bytes of UTF-8 fit, also when they are 256 characters."""
    assert Key.parse(f"{'é' * 256}/{'x' * 512}").tenant == "é" * 256


@pytest.mark.parametrize(
    ("key", "of_16", "of_7"), [("acme/o-1001", 11, 2), ("acme/o-1002", 7, 6), ("grüße/ß", 15, 4), ("a/b", 0, 5)]
)
def test_the_partition_of_a_key_never_changes(key: str, of_16: int, of_7: int) -> None:
    """Data lies where this function says, so its results are part of the format."""
    assert (partition_of(key, 16), partition_of(key, 7)) == (of_16, of_7)


def test_keys_spread_over_all_partitions() -> None:
    """No partition is left out and none gets twice its share."""
    counts = [0] * 16
    for number in range(16_000):
        counts[partition_of(f"acme/o-{number}", 16)] += 1

    assert min(counts) > 800
    assert max(counts) < 1_200


def test_invocation_ids_sort_by_time_and_differ() -> None:
    """Sixteen bytes: milliseconds first, then chance."""
    ids = [new_invocation_id() for _ in range(1_000)]

    assert len(set(ids)) == len(ids)
    assert {len(raw) for raw in ids} == {16}
    assert [raw[:6] for raw in ids] == sorted(raw[:6] for raw in ids)


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    st.integers(0, 16_383),
    st.binary(min_size=16, max_size=16),
)
def test_the_text_form_of_an_id_reads_back(type_name: str, partition: int, raw: bytes) -> None:
    """Also where the name of the type has dots."""
    parsed = parse_id(format_id(type_name, partition, raw))

    assert parsed == (type_name, partition, raw)
    assert str(parsed) == format_id(type_name, partition, raw)


@pytest.mark.parametrize(
    "text",
    ["", "Order", "Order.3", "Order.3.0102", ID.upper(), f"{ID}0", ID.replace(".3.", ".03."), f" {ID}", f"{ID}\n"],
)
def test_what_is_no_id_is_refused_with_an_example(text: str) -> None:
    """The error shows how an id looks."""
    with pytest.raises(InvalidKey, match="an invocation id looks like"):
        parse_id(text)


@pytest.mark.parametrize(
    ("text", "may"),
    [("Order", True), ("a", True), ("A.b-c_9", True), ("9a", False), ("", False), ("a" * 65, False), ("a\n", False)],
)
def test_names_of_object_types_and_handlers(text: str, may: bool) -> None:  # noqa: FBT001  a column of the table
    """A letter first, then letters, digits and _ . - up to 64."""
    assert is_name(text) is may
