"""Leaving out of a dumped value the fields that nobody has set.

pydantic's own `exclude_unset` also drops a tag that has a default, such as `kind: Literal["card"] = "card"`, without
which a union can't be read back; and it knows nothing of dataclasses, which don't remember what was set: in them a
field that has its default counts as not set.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args, get_origin

from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo


def without_unset(value: Any, tree: Any) -> Any:
    """Leave out of a dumped value each field that nobody has set.

    Args:
        value: The typed value.
        tree: What pydantic dumped of it, which has the same shape except where a serializer changes it.
    """
    if isinstance(value, RootModel):
        return without_unset(cast("RootModel[Any]", value).root, tree)
    if isinstance(tree, dict):
        return _of_fields(value, cast("dict[Any, Any]", tree))
    if isinstance(tree, list | tuple) and isinstance(value, list | tuple):
        pairs = zip(cast("Iterable[Any]", value), cast("Iterable[Any]", tree), strict=False)
        children = [without_unset(*pair) for pair in pairs]
        return tuple(children) if isinstance(tree, tuple) else children
    return cast("Any", tree)


def _of_fields(value: Any, tree: dict[Any, Any]) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value).values()
        return {key: without_unset(member, tree[key]) for key, member in zip(tree, members, strict=False)}
    unset = _unset_fields(value)
    return {name: without_unset(getattr(value, name, None), child) for name, child in tree.items() if name not in unset}


def _unset_fields(value: Any) -> set[str]:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {name for name in fields.keys() - value.model_fields_set if not _is_tag(fields[name].annotation)}
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value) if _has_default(field, value)}
    return set()


def _is_tag(annotation: object) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def _has_default(field: dataclasses.Field[Any], value: object) -> bool:
    return not _is_tag(field.type) and bool(_default(field) == getattr(value, field.name, dataclasses.MISSING))


def _default(field: dataclasses.Field[Any]) -> Any:
    if isinstance(field.default, FieldInfo):
        return field.default.get_default(call_default_factory=True, validated_data={})
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    # An object of its own, equal to nothing, where there is no default.
    return object() if field.default is dataclasses.MISSING else field.default
