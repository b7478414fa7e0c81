"""Declared types at the boundaries: what a handler takes and gives, and what state and steps keep.

A value is dumped by pydantic in Python mode, so that dates, decimals and bytes stay what they are, and packed by the
codec. Each dump is checked against the declared type before it is written: what `dump` accepts, `load` accepts too.

What the codec has no form for (paths, addresses, URLs) is written as text if the declared type makes the same object
of that text again, and refused otherwise. A value of no declared type (`Any`, `object`) has to be plain data; inside
another type, as in `dict[str, Any]`, it comes back as plain data. Fields are written by name and read by name or
alias. A strict model takes over the wire what it has dumped itself, and from anybody else what strict validation
allows.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, Generic, TypeVar, cast
from zoneinfo import ZoneInfo

from pydantic import PydanticUserError, Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypeForm

from ..journal.codec import Encoder, NotEncodable, step_into, unpack
from ..journal.errors import InvalidInput, InvalidOutput, RegistrationError
from .fingerprint import canonical
from .unset import without_unset

T = TypeVar("T")
Refusal = type[InvalidInput] | type[InvalidOutput]

# Validation returns a value of exactly such a type as it is, so it needs none.
_SELF_EVIDENT: Final = frozenset[object]({int, str, float, bool, bytes, type(None)})
_UNIONS: Final = frozenset({"union", "tagged-union"})
_UNDECLARED: Final = frozenset({"any", "union"})
_CACHED_FORMS: Final = 1024


class Boundary(Generic[T]):
    """Turns values of one declared type into bytes and back.

    Args:
        form: The declared type: whatever pydantic understands.
        where: What errors call the value, e.g. the name of the parameter.
        refusal: `InvalidInput` for what comes from a caller, `InvalidOutput` for what a handler makes.
        names: Names that the type's own annotations may need: those visible where the handler is defined.

    Raises:
        RegistrationError: pydantic can't make a schema of the type.
    """

    __slots__ = ("_adapter", "_exact", "_has_union", "_is_doubtful", "_refusal", "form", "where")

    def __init__(
        self,
        form: TypeForm[T],
        *,
        where: str = "value",
        refusal: Refusal = InvalidInput,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.form: Any = form
        self.where = where
        self._refusal = refusal
        self._adapter = _adapter_of(form, where, names)
        mentioned = _kinds_in(self._adapter)
        self._has_union = not mentioned.isdisjoint(_UNIONS)
        # `Colour | str` takes the value of a member for a string, so such a type is looked at after each dump.
        self._is_doubtful = "enum" in mentioned and not mentioned.isdisjoint(_UNDECLARED)
        self._exact: frozenset[object] = _SELF_EVIDENT & {form} if isinstance(form, type) else frozenset()

    def __repr__(self) -> str:
        return f"Boundary({self.form!r}, where={self.where!r})"

    def dump(self, value: T) -> bytes:
        """Turn a value into bytes; what validation would convert, it converts.

        Raises:
            InvalidInput: The value does not fit the type, or holds something that can't be written down
                (`InvalidOutput` where the boundary says so).
        """
        if type(value) in self._exact:
            return self._packed(value)
        tree = self._tree(value)
        self._validated(tree)
        return self._packed(tree)

    def load(self, data: bytes) -> T:
        """Turn bytes back into a value of the type.

        Raises:
            Undecodable: The bytes are not a packed value.
            InvalidInput: The value does not fit the type (`InvalidOutput` where the boundary says so).
        """
        value = unpack(data)
        if type(value) in self._exact:
            return value
        return self._validated(value)

    def dump_unset(self, value: T) -> bytes:
        """Turn a value into bytes without the fields that nobody has set: the basis of the fingerprint.

        A dataclass does not remember which fields were set; there a field that has its default counts as not set.
        """
        typed = self._typed(value)
        return self._packed_basis(typed, self._tree(typed))

    def dump_both(self, value: T) -> tuple[bytes, bytes]:
        """Turn a value into what `dump` and what `dump_unset` make of it, for little more than one of the two.

        Raises:
            InvalidInput: As those raise it (`InvalidOutput` where the boundary says so).
        """
        if type(value) in self._exact:
            data = self._packed(value)
            return data, data
        tree = self._tree(value)
        self._validated(tree)
        typed = self._typed(value)
        # A model is taken as it is, so that there is no need for another dump of it.
        return self._packed(tree), self._packed_basis(typed, tree if typed is value else self._tree(typed))

    def _packed_basis(self, typed: T, whole: object) -> bytes:
        basis = without_unset(typed, whole)
        if self._has_union and not self._is_enough(basis, whole):
            return self._packed(whole)
        return self._packed(basis)

    def _typed(self, value: object) -> T:
        try:
            # A model is taken as it is here, with its knowledge of what was set, which its dump has lost.
            return self._validated(value)
        except (InvalidInput, InvalidOutput):
            return self._validated(self._tree(value))

    def _is_enough(self, basis: object, whole: object) -> bool:
        """Whether the fields that are left make the same value: a union may need more of them to be told apart."""
        try:
            made = self._validated(basis)
        except (InvalidInput, InvalidOutput):
            return False
        return self._canonical(self._tree(made)) == self._canonical(whole)

    def _tree(self, value: object, *, exclude_unset: bool = False) -> Any:
        try:
            # round_trip leaves out what validation does not take back, such as computed fields.
            return self._adapter.serializer.to_python(
                value, mode="python", by_alias=False, exclude_unset=exclude_unset, round_trip=True, warnings=False
            )
        except PydanticSerializationError as error:
            raise self._refusal(self.where, str(error)) from error

    def _validated(self, value: object) -> T:
        try:
            return self._adapter.validator.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as error:
            return self._validated_as_dumped(value, error)
        except Exception as error:
            # A validator of the user's may raise anything; all that it says is that the value won't do.
            raise self._refusal(self.where, f"its validation raised {type(error).__name__}: {error}") from error

    def _validated_as_dumped(self, value: object, error: ValidationError) -> T:
        """Let a strict type have its own dump: strict validation asks for members and dataclasses, not their data."""
        try:
            typed = self._adapter.validator.validate_python(value, strict=False, by_alias=True, by_name=True)
        except ValidationError:
            raise self._misfit(error, value) from error
        as_set = self._tree(typed, exclude_unset=True)
        if self._canonical(as_set) != self._canonical(value):
            raise self._misfit(error, value) from error
        return typed

    def _canonical(self, tree: object) -> bytes:
        return canonical(unpack(self._packed_with_objects(tree)))

    def _packed(self, tree: object) -> bytes:
        try:
            data = _ENCODER.pack_anonymously(tree)
        except Exception:  # noqa: BLE001  the second try finds the place
            data = self._packed_with_objects(tree)
        else:
            if not self._is_doubtful:
                return data
        self._check_return(data, tree)
        return data

    def _packed_with_objects(self, tree: object) -> bytes:
        try:
            return _OBJECTS.pack(tree)
        except NotEncodable as error:
            dot = "." if error.path and not error.path.startswith("[") else ""
            raise self._refusal(f"{self.where}{dot}{error.path}", f"{error.type_name}: {error.reason}") from error

    def _check_return(self, data: bytes, tree: object) -> None:
        returned = Counter(_objects_in(self._tree(self._validated(unpack(data)))))
        lost = Counter(_objects_in(tree)) - returned
        for type_name, text in lost:
            reason = f"{type_name} {text} would come back as something else: declare its type, without other choices"
            raise self._refusal(self.where, reason)

    def _misfit(self, error: ValidationError, value: object) -> InvalidInput | InvalidOutput:
        reasons: dict[str, list[str]] = {}
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            path = _path(self.where, detail["loc"], value, is_missing=detail["type"] == "missing")
            reasons.setdefault(path, []).append(detail["msg"])
        first, *others = reasons
        also = f" (and {len(others)} more: {', '.join(others[:3])})" if others else ""
        return self._refusal(first, " or: ".join(dict.fromkeys(reasons[first])) + also)


class PlainBoundary(Boundary[Any]):
    """The boundary of a value whose type nobody declared: what could not come back as it is, it refuses."""

    __slots__ = ()

    def dump(self, value: Any) -> bytes:
        """Turn plain data into bytes."""
        try:
            found = next(_objects_in(value), None)
        except RecursionError:
            # Packing it says so.
            found = None
        if found is not None:
            remedy = "declare the type of this value, or give plain data, such as a dict"
            raise self._refusal(self.where, f"{found[0]} is no plain data: {remedy}")
        return self._packed(value)

    def dump_both(self, value: Any) -> tuple[bytes, bytes]:
        """Turn plain data into bytes, twice: no field of it is unset."""
        return self.dump(value), self.dump_unset(value)

    def load(self, data: bytes) -> Any:
        """Turn bytes back into plain data."""
        return unpack(data)


def make_boundary(
    form: TypeForm[T], *, where: str = "value", refusal: Refusal = InvalidInput, names: Mapping[str, Any] | None = None
) -> Boundary[T]:
    """Make the boundary of a type; see `Boundary` for the arguments."""
    declared: Any = form
    kind = PlainBoundary if declared in (Any, object) else Boundary[Any]
    return cast("Boundary[T]", kind(form, where=where, refusal=refusal, names=names))


def boundary_of(form: TypeForm[T], *, where: str = "value", refusal: Refusal = InvalidInput) -> Boundary[T]:
    """The boundary of a type, made once and kept."""
    if not _is_hashable(form):
        return make_boundary(form, where=where, refusal=refusal)
    return cast("Boundary[T]", _kept_boundary(form, _spelling(form), where, refusal))


def _is_hashable(form: object) -> bool:
    try:
        hash(form)
    except TypeError:
        return False
    return True


def _spelling(form: object) -> str:
    # `A | B` equals `B | A` as a cache key, and is not the same to pydantic.
    return "" if isinstance(form, type) else repr(form)


@lru_cache(maxsize=_CACHED_FORMS)
def _kept_boundary(form: Any, spelling: str, where: str, refusal: Refusal) -> Boundary[Any]:
    del spelling
    return make_boundary(cast("TypeForm[Any]", form), where=where, refusal=refusal)


def _adapter_of(form: Any, where: str, names: Mapping[str, Any] | None) -> TypeAdapter[Any]:
    if inspect.isroutine(form):
        # pydantic would take a function for a type, and call it.
        what = f"the type of {where} is the function {form.__name__}"
        raise RegistrationError(what, parameter=where, remedy="declare a type")
    try:
        adapter = _kept_adapter(form, _spelling(form)) if _is_hashable(form) else TypeAdapter[Any](form)
        if not adapter.pydantic_complete:
            adapter = TypeAdapter[Any](form)
            adapter.rebuild(raise_errors=True, _types_namespace=dict(names or {}))
    except PydanticUndefinedAnnotation as error:
        raise RegistrationError(
            f"the type of {where} needs the name {error.name!r}, which is not defined",
            parameter=where,
            remedy="define it before, and import it outside `if TYPE_CHECKING:`",
        ) from error
    except (PydanticUserError, TypeError, SyntaxError) as error:
        why = str(error).splitlines()[0].split(". ")[0]
        raise RegistrationError(
            f"the type of {where}, {form!r}, can't be written down ({why})",
            parameter=where,
            remedy="declare a pydantic model, a dataclass or plain types",
        ) from error
    return adapter


@lru_cache(maxsize=_CACHED_FORMS)
def _kept_adapter(form: Any, spelling: str) -> TypeAdapter[Any]:
    del spelling
    return TypeAdapter[Any](form)


@lru_cache(maxsize=_CACHED_FORMS)
def _kinds_in(adapter: TypeAdapter[Any]) -> frozenset[str]:
    return frozenset(_mentions(adapter.core_schema))


def _mentions(schema: object) -> Iterator[str]:
    """The kinds of schema that occur in a schema."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[object, object]", schema)
        kind = fields.get("type")
        if isinstance(kind, str):
            yield kind
        for name, child in fields.items():
            if name not in ("metadata", "default"):
                yield from _mentions(child)
    elif isinstance(schema, list | tuple):
        for child in cast("Iterable[object]", schema):
            yield from _mentions(child)


def _path(where: str, steps: tuple[int | str, ...], value: Any, *, is_missing: bool) -> str:
    """Follow an error's location through the value; what leads nowhere names a member of a union."""
    path = where
    for position, step in enumerate(steps, start=1):
        is_container = isinstance(value, Mapping | list | tuple)
        leads_on = isinstance(step, int) or (is_container and step in value)
        if leads_on or (is_missing and position == len(steps)):
            path = step_into(path, step)
        if leads_on:
            value = _child(value, step)
    return path


def _child(value: Any, step: int | str) -> object:
    try:
        return value[step]
    except (LookupError, TypeError):
        return None


def _objects_in(tree: Any) -> Iterator[tuple[str, str]]:
    """What in a dumped value is no plain data: members of enumerations, and what is written as text."""
    if isinstance(tree, Enum) or not _is_plain(tree):
        yield type(tree).__name__, repr(tree)
    elif isinstance(tree, Mapping):
        for item in cast("Mapping[object, object]", tree).items():
            yield from _objects_in(item)
    elif isinstance(tree, list | tuple | set | frozenset):
        for child in cast("Iterable[object]", tree):
            yield from _objects_in(child)


def _is_plain(value: object) -> bool:
    try:
        _ENCODER.pack_anonymously(value)
    except NotEncodable:
        return isinstance(value, Mapping | list | tuple | set | frozenset)
    except (ValueError, RecursionError):
        # A text that no bytes can carry, or what is nested too deeply: packing it says so, and where.
        return True
    return True


def _text_of(value: Any) -> object:
    type_name: str = type(value).__name__
    if isinstance(value, SecretStr | SecretBytes | Secret):
        raise NotEncodable("", type_name, "a secret is not written down; pass a reference to it instead")
    if isinstance(value, ZoneInfo):
        return value.key
    if isinstance(value, PurePath):
        return str(value)
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError) as error:
        reason = "its type has no form on the wire; declare a type that pydantic can write and read"
        raise NotEncodable("", type_name, reason) from error


_ENCODER: Final = Encoder()
_OBJECTS: Final = Encoder(_text_of)
