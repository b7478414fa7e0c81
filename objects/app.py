"""What a deployment hosts, and how the command line finds it."""

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, cast

from ..journal.errors import RegistrationError, UnknownObject
from .handler import Handler
from .receiver_checks import check_windows
from .receivers import Effect, Receiver
from .reservations import RESERVATIONS, Reservations
from .settings import Settings, settings_of
from .virtual_object import VirtualObject

_EXPECTED: Final = "an App, a VirtualObject, a list of them, or a function without arguments that returns one"
_MODULE_REMEDY: Final = "write module:attribute, e.g. shop.orders:app, without .py and without slashes"


class App:
    """Names what a deployment hosts; opens nothing.

    Args:
        objects: The object types. Where a receiver sees operation ids as they are (`ids="verbatim"`), an object type
            `keylane.ids` is hosted besides, which keeps for whom each is reserved.
        receivers: Receivers beside those of the effects that the object types list, so that `keylane effects plan` and
            `keylane contract` know of them.
        settings: The numbers of the deployment; without it, those of the environment.

    Raises:
        RegistrationError: Two object types or two receivers have one name, something is neither, or what a receiver
            promises could never be used under these settings.
    """

    def __init__(
        self,
        objects: Iterable[VirtualObject] | VirtualObject,
        *,
        receivers: Iterable[Receiver] = (),
        settings: Settings | None = None,
    ) -> None:
        listed = [objects] if isinstance(objects, VirtualObject) else _listed(objects, "objects", "VirtualObjects")
        hosted: dict[str, VirtualObject] = {}
        for item in listed:
            _check_object(item)
            if hosted.setdefault(item.name, item) is not item:
                what = f"two object types are named {item.name!r}"
                raise RegistrationError(
                    what, parameter="objects", remedy="a name belongs to one object type; rename one"
                )
        if not hosted:
            raise RegistrationError("App hosts nothing", parameter="objects", remedy="list at least one VirtualObject")
        self.settings: Final = settings_of(settings)
        self.receivers: Final[Mapping[str, Receiver]] = MappingProxyType(_receivers(hosted.values(), receivers))
        verbatim = [each for each in self.receivers.values() if each.ids == "verbatim"]
        if verbatim:
            hosted[RESERVATIONS] = Reservations(verbatim)
        self.objects: Final[Mapping[str, VirtualObject]] = MappingProxyType(hosted)
        for effect in self.effects:
            check_windows(effect, self.settings)

    def __repr__(self) -> str:
        return f"App([{', '.join(self.objects)}])"

    @property
    def effects(self) -> tuple[Effect[Any, Any], ...]:
        """The effects that its object types list, each once, and those of the receivers that it names besides."""
        listed = [effect for each in self.objects.values() for effect in each.effects.values()]
        declared = [effect for each in self.receivers.values() for effect in each.effects]
        return tuple(dict.fromkeys([*listed, *declared]))

    def find(self, name: str) -> VirtualObject:
        """The object type of a name.

        Raises:
            UnknownObject: It is not hosted here.
        """
        if name not in self.objects:
            raise UnknownObject(name, tuple(sorted(self.objects)))
        return self.objects[name]


def _listed(given: Iterable[Any], parameter: str, what: str) -> list[Any]:
    if not isinstance(cast("object", given), Iterable):
        raise RegistrationError(f"{parameter} is {given!r}", parameter=parameter, remedy=f"list {what}")
    return list(given)


def _receivers(objects: Iterable[VirtualObject], named: Iterable[Receiver]) -> dict[str, Receiver]:
    receivers: dict[str, Receiver] = {}
    asked = [effect.receiver for each in objects for effect in each.effects.values()]
    for each in [*_listed(named, "receivers", "Receivers"), *asked]:
        if not isinstance(cast("object", each), Receiver):
            raise RegistrationError(f"{each!r} is no receiver", parameter="receivers", remedy="list Receivers")
        if receivers.setdefault(each.name, each) is not each:
            remedy = "an effect is found again by the name of its receiver: rename one, or declare it once"
            raise RegistrationError(f"two receivers are named {each.name!r}", parameter="receivers", remedy=remedy)
    return receivers


def _check_object(item: object) -> None:
    if isinstance(item, VirtualObject):
        if item.name == RESERVATIONS and not isinstance(item, Reservations):
            what = f"{item!r} has the name of an object type of Keylane's own"
            raise RegistrationError(what, parameter="objects", remedy="rename it")
        return
    remedy = "list VirtualObjects"
    if isinstance(item, Handler):
        remedy = f"list the VirtualObject {item.object_name!r}; its handlers come with it"
    raise RegistrationError(f"{item!r} is no object type", parameter="objects", remedy=remedy)


def app_of(hosted: App | VirtualObject | Iterable[VirtualObject], *, settings: Settings | None = None) -> App:
    """The app that was given, or one made of the object types that were given."""
    if isinstance(hosted, App):
        if settings is None:
            return hosted
        return App(hosted.objects.values(), receivers=hosted.receivers.values(), settings=settings)
    return App(hosted, settings=settings)


def load_app(reference: str) -> App:
    """Find the app that a command line names.

    Args:
        reference: `module:attribute`; the attribute is `app` unless given. The working directory comes first on the
            module path.

    Raises:
        RegistrationError: There is no such module or attribute, or it is something else.
        Exception: Whatever the module raises when it is imported.
    """
    module_name, _, attribute = reference.partition(":")
    module = _imported(module_name, reference)
    attribute = attribute or "app"
    if not hasattr(module, attribute):
        raise RegistrationError(f"{module_name} has no attribute {attribute!r}", remedy=_candidates(module))
    return _as_app(getattr(module, attribute), f"{module_name}:{attribute}")


def _imported(name: str, reference: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    if not all(part.isidentifier() for part in name.split(".")):
        raise RegistrationError(f"{reference!r} does not name a module", remedy=_MODULE_REMEDY)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that is missing deeper inside is the module's own trouble, with its own traceback.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        elsewhere = f"run the command in the directory that holds it (this is {here}), or install it"
        remedy = _MODULE_REMEDY if name.endswith(".py") else elsewhere
        raise RegistrationError(f"there is no module {error.name!r}", remedy=remedy) from error


def _candidates(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App | VirtualObject)]
    if not names:
        return f"define {_EXPECTED}"
    return f"did you mean {' or '.join(f'{module.__name__}:{name}' for name in names)}?"


def _as_app(value: object, reference: str) -> App:
    if isinstance(value, App):
        return value
    if isinstance(value, VirtualObject):
        return App(value)
    if isinstance(value, list | tuple):
        return App(cast("Iterable[Any]", value))
    if inspect.isfunction(value):
        return _made_by(value, reference)
    raise RegistrationError(f"{reference} is {_found(value)}", remedy=f"expected {_EXPECTED}")


def _made_by(function: Any, reference: str) -> App:
    is_plain = not inspect.iscoroutinefunction(function) and not inspect.isgeneratorfunction(function)
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD")
    ]
    if needed or not is_plain:
        remedy = f"expected {_EXPECTED}"
        takes = f"a function that takes {', '.join(needed)}" if needed else "not a plain function"
        raise RegistrationError(f"{reference} is {takes}", remedy=remedy)
    made = function()
    if inspect.isfunction(made):
        raise RegistrationError(f"{reference}() returns a function", remedy=f"expected {_EXPECTED}")
    return _as_app(made, f"{reference}()")


def _found(value: object) -> str:
    if isinstance(value, Handler):
        return f"a handler of {value.object_name!r}"
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
