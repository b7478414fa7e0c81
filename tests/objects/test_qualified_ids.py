"""What a receiver sees as operation id."""

from hypothesis import given
from hypothesis import strategies as st

from keylane.objects.receiver_checks import ID_LIMIT_MIN
from keylane.objects.receivers import qualified_id

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,5}", fullmatch=True)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
keys = st.tuples(words.filter(lambda tenant: "/" not in tenant), words).map("/".join)
operations = st.tuples(names, names, keys, words)
limits = st.sampled_from([ID_LIMIT_MIN, 40, 64, 200])


def test_it_can_be_read_where_it_fits() -> None:
    """Namespace, type, key and operation id, with dots between."""
    assert qualified_id("keylane", "Order", "acme/o-1001", "refund-1", 200) == "keylane.Order.acme/o-1001.refund-1"


def test_a_dot_within_a_part_does_not_end_it() -> None:
    """Else the refunds of two orders could share an id."""
    assert qualified_id("keylane", "Order", "acme/o-1", "x.refund", 200) == "keylane.Order.acme/o-1.x%2Erefund"
    assert qualified_id("keylane", "Order", "acme/o-1.x", "refund", 200) == "keylane.Order.acme/o-1%2Ex.refund"


def test_it_is_hashed_where_it_does_not_fit() -> None:
    """As long as the receiver takes, up to 64 digits."""
    assert len(qualified_id("keylane", "Order", "acme/" + "o" * 60, "refund-1", 33)) == 32
    assert len(qualified_id("keylane", "Order", "acme/" + "o" * 300, "refund-1", 200)) == 64


@given(operations, operations, limits)
def test_two_operations_never_share_an_id(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str], limit: int
) -> None:
    """Whatever the parts are made of, and whether they are hashed or not."""
    assert (qualified_id(*one, limit) == qualified_id(*other, limit)) == (one == other)


@given(operations, limits)
def test_an_id_is_printable_ascii_within_the_limit(parts: tuple[str, str, str, str], limit: int) -> None:
    """So that it fits a header."""
    text = qualified_id(*parts, limit)

    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert 0 < len(text) <= limit


@given(st.lists(st.sampled_from(["a", "b", ".", "/", "%"]), min_size=3, max_size=8), st.data())
def test_where_a_part_ends_makes_a_difference(letters: list[str], data: st.DataObject) -> None:
    """The same letters, divided in two ways between key and operation id, are two operations."""
    text = "".join(letters)
    here = data.draw(st.integers(1, len(text) - 1))
    there = data.draw(st.integers(1, len(text) - 1).filter(lambda cut: cut != here))
    one = qualified_id("n", "T", f"t/{text[:here]}", text[here:], 200)

    assert one != qualified_id("n", "T", f"t/{text[:there]}", text[there:], 200)
