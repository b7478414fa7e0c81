from typing import Any

import pytest

from keylane.journal.codec import unpack
from keylane.objects.types import boundary_of
from tests.objects.type_table import TYPE_TABLE, TYPE_TABLE_NAMES, exactly


@pytest.mark.parametrize(("name", "form", "value"), TYPE_TABLE, ids=TYPE_TABLE_NAMES)
def test_a_value_comes_back_exactly_as_its_declared_type(name: str, form: Any, value: Any) -> None:
    """Value and type, inside too, survive the round trip through bytes."""
    boundary = boundary_of(form)

    returned = boundary.load(boundary.dump(value))

    assert returned == value
    assert exactly(returned) == exactly(value)


@pytest.mark.parametrize(("name", "form", "value"), TYPE_TABLE, ids=TYPE_TABLE_NAMES)
def test_a_dump_of_what_came_back_is_the_same_bytes(name: str, form: Any, value: Any) -> None:
    """Writing a value down again, after reading it, changes nothing."""
    boundary = boundary_of(form)
    data = boundary.dump(value)

    assert boundary.dump(boundary.load(data)) == data


@pytest.mark.parametrize(("name", "form", "value"), TYPE_TABLE, ids=TYPE_TABLE_NAMES)
def test_the_bytes_hold_plain_data_only(name: str, form: Any, value: Any) -> None:
    """Whoever has not the types, a shell or another program, can read what is written."""
    boundary = boundary_of(form)

    plain = unpack(boundary.dump(value))

    boundary_of(Any).dump(plain)


@pytest.mark.parametrize(("name", "form", "value"), TYPE_TABLE, ids=TYPE_TABLE_NAMES)
def test_the_basis_of_a_fingerprint_is_a_value_of_the_type(name: str, form: Any, value: Any) -> None:
    """What is left without the unset fields is still the whole value, and stays the same when read."""
    boundary = boundary_of(form)

    basis = boundary.dump_unset(value)

    assert boundary.load(basis) == value
    assert boundary.dump_unset(boundary.load(basis)) == basis


@pytest.mark.parametrize(("name", "form", "value"), TYPE_TABLE, ids=TYPE_TABLE_NAMES)
def test_a_value_is_dumped_both_ways_as_in_each(name: str, form: Any, value: Any) -> None:
    """Whoever wants the bytes and the basis of the fingerprint gets the same as by asking for one after the other."""
    boundary = boundary_of(form)

    assert boundary.dump_both(value) == (boundary.dump(value), boundary.dump_unset(value))
