"""Frozen facts that are made, or copied with other values in some fields, for each record that is written.

A frozen class has each of its fields written by a call. So such a fact is an object of an open class with the same
slots while its fields are written, as any attributes are, and becomes a frozen one when all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, cast

Fact = TypeVar("Fact")

_FACTORY = object()


def often_made(kind: type[Fact]) -> type[Fact]:
    """Have facts of a kind made in a third of the time; the class is otherwise the same.

    Args:
        kind: A frozen dataclass with slots, of which no other is derived, and which does nothing after it is made.
    """
    # Those that are given by name only stand behind the others, wherever they are declared.
    members = sorted(fields(cast("Any", kind)), key=lambda each: each.kw_only is True)
    scope: dict[str, Any] = {"_kind": kind, "_open": _open_class(kind), "_put": object.__setattr__, "_none": _FACTORY}
    taken: list[str] = []
    lines = ['_put(self, "__class__", _open)']
    for each in members:
        scope[f"_default_{each.name}"] = each.default if each.default_factory is MISSING else each.default_factory
        taken.append(_parameter(each))
        lines.append(f"self.{each.name} = {_value(each)}")
    first_named = next((place for place, each in enumerate(members) if each.kw_only is True), None)
    if first_named is not None:
        taken.insert(first_named, "*")
    lines.append("self.__class__ = _kind")
    made = _function("__init__", f"self, {', '.join(taken)}", lines, scope)
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    made.__annotations__ = kind.__init__.__annotations__
    cast("Any", kind).__init__ = made
    return kind


def copier(kind: type[Fact]) -> Callable[[Fact, dict[str, Any]], Fact]:
    """Return what copies facts of a kind, with the values of a mapping in place of their own.

    It takes a small part of the time that `dataclasses.replace` does.
    """
    names = [each.name for each in fields(cast("Any", kind))]
    lines = ["copy = _open()", *(f"copy.{name} = fact.{name}" for name in names), "return copy"]
    copy_of: Callable[[Fact], Any] = _function("copy_of", "fact", lines, {"_open": _open_class(kind)})

    def but(fact: Fact, changes: dict[str, Any]) -> Fact:
        copy = copy_of(fact)
        for name, value in changes.items():
            setattr(copy, name, value)
        copy.__class__ = kind
        return copy

    return but


def _open_class(kind: type[Any]) -> type[Any]:
    return type(f"Open{kind.__name__}", (), {"__slots__": tuple(each.name for each in fields(kind))})


def _parameter(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f"{field.name}=_none"
    return field.name if field.default is MISSING else f"{field.name}=_default_{field.name}"


def _value(field: Field[Any]) -> str:
    if field.default_factory is MISSING:
        return field.name
    return f"_default_{field.name}() if {field.name} is _none else {field.name}"


def _function(name: str, parameters: str, lines: list[str], scope: dict[str, Any]) -> Any:
    """Return a function of these lines, made as `dataclasses` makes its own; what is no field begins with `_`."""
    text = "\n    ".join((f"def {name}({parameters}):", *lines))
    exec(text, scope)  # noqa: S102
    return scope[name]
