"""What a function's annotations say, found when it is registered.

Annotations are resolved one by one, so that an error can name the parameter. Names are looked up where Python itself
would have: in the function's module, in its closure, and in the functions and classes around the decorator.
"""

import functools
import inspect
import typing
from collections import ChainMap
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, Final, Literal, cast

from ..journal.errors import InvalidInput, InvalidOutput, RegistrationError
from .context import AnyContext, BlockingObjectContext, BlockingSharedContext, ObjectContext, SharedContext
from .types import Boundary, boundary_of, make_boundary

Kind = Literal["exclusive", "shared"]

_CONTEXTS: Final[Mapping[tuple[Kind, bool], type[AnyContext]]] = {
    ("exclusive", False): ObjectContext,
    ("exclusive", True): BlockingObjectContext,
    ("shared", False): SharedContext,
    ("shared", True): BlockingSharedContext,
}
_RETURN: Final = "return"
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a handler takes and gives; `input` is None for one without an argument."""

    is_blocking: bool
    input: Boundary[Any] | None
    output: Boundary[Any]


def read_signature(function: Callable[..., Any], kind: Kind) -> Signature:
    """Read and check the signature of a handler.

    Raises:
        RegistrationError: It can't be a handler; the error names the parameter and the remedy.
    """
    _check_function(function)
    is_blocking = not inspect.iscoroutinefunction(function)
    context, *arguments = _parameters(function)
    annotations = _Annotations.around(function)
    _check_context(annotations, context, kind, is_blocking=is_blocking)
    taken = annotations.boundary(arguments[0], InvalidInput) if arguments else None
    return Signature(is_blocking, taken, annotations.boundary(_RETURN, InvalidOutput))


def effect_boundaries(function: Callable[..., Any]) -> tuple[Boundary[Any], Boundary[Any]]:
    """Return the boundaries of the parameters and of the receipt of an effect's function.

    Raises:
        RegistrationError: It can't be one; the error names the parameter and the remedy.
    """
    _check_function(function)
    name = function.__qualname__.replace("<locals>.", "")
    remedy = "write async def name(operation_id: str, params: Params) -> Receipt"
    named = _positional(function)
    if not takes(function, _EFFECT_PARAMETERS) or len(named) != _EFFECT_PARAMETERS:
        raise RegistrationError(f"{name} can't be the function of an effect", parameter="function", remedy=remedy)
    annotations = _Annotations.around(function)
    return annotations.boundary(named[1], InvalidInput), annotations.boundary(_RETURN, InvalidOutput)


def takes(function: object, count: int) -> bool:
    """Return whether something is an `async def` that can be called with so many arguments."""
    if not callable(function) or not inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(cast("Callable[..., Any]", function)).bind(*range(count))
    except TypeError:
        return False
    return True


def lookup_forms(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return what a look-up takes beside the operation id and what it finds; `Any` where that is not annotated.

    Raises:
        RegistrationError: An annotation can't be resolved.
    """
    plain = _function_of(function)
    if plain is None:
        return Any, Any
    annotations, named = _Annotations.around(plain), _positional(function)
    taken = named[1] if len(named) >= _EFFECT_PARAMETERS else ""
    forms = [annotations.form(name, "") if name in annotations.raw else Any for name in (taken, _RETURN)]
    return forms[0], forms[1]


def first_form(function: Callable[..., Any]) -> Any:
    """Return what the first argument of a function is annotated as; `Any` where it is not annotated.

    Raises:
        RegistrationError: The annotation can't be resolved.
    """
    plain = _function_of(function)
    if plain is None:
        return Any
    annotations, named = _Annotations.around(plain), _positional(function)
    return annotations.form(named[0], "") if named and named[0] in annotations.raw else Any


def _positional(function: Callable[..., Any]) -> list[str]:
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind in _POSITIONAL]


_EFFECT_PARAMETERS: Final = 2


def _check_function(function: object) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise RegistrationError(
            f"{name} is a {type(function).__name__}", remedy="a handler is a function: `async def` or plain `def`"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise RegistrationError(f"handler {name} yields", remedy="return one value, e.g. a list")


def _parameters(function: Callable[..., Any]) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    name = _name_of(function)
    if not parameters:
        remedy = "a handler takes the context first, e.g. `ctx: ObjectContext`"
        raise RegistrationError(f"handler {name} has no parameter", parameter="ctx", remedy=remedy)
    first = parameters[0]
    if first.name in ("self", "cls") and first.annotation is first.empty:
        remedy = "a handler is a function outside of any class: what an object knows, it asks ctx for"
        raise RegistrationError(f"handler {name} is a method", parameter=first.name, remedy=remedy)
    for parameter in parameters:
        _check_parameter(name, parameter)
    if len(parameters) > 2:  # noqa: PLR2004  the context and one argument
        names = ", ".join(parameter.name for parameter in parameters[1:])
        remedy = "a handler takes one argument or none: put them into one model"
        raise RegistrationError(f"handler {name} takes {names}", parameter=parameters[2].name, remedy=remedy)
    return [parameter.name for parameter in parameters]


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind not in _POSITIONAL:
        remedy = "take the context and one argument, both by position"
        raise RegistrationError(f"handler {name} takes {parameter}", parameter=parameter.name, remedy=remedy)
    if parameter.default is not parameter.empty:
        remedy = "a caller always sends the argument: use `| None`, or a field with a default in a model"
        what = f"parameter {parameter.name} of handler {name} has a default"
        raise RegistrationError(what, parameter=parameter.name, remedy=remedy)


def _check_context(annotations: "_Annotations", parameter: str, kind: Kind, *, is_blocking: bool) -> None:
    expected = _CONTEXTS[kind, is_blocking]
    annotated = annotations.form(parameter, f"annotate it, e.g. `{parameter}: {expected.__name__}`")
    if isinstance(annotated, type) and issubclass(expected, annotated) and annotated is not object:
        return
    definition = "plain `def`" if is_blocking else "`async def`"
    shown = annotated.__name__ if isinstance(annotated, type) else repr(annotated)
    article = "an" if kind == "exclusive" else "a"
    remedy = f"{article} {kind} handler written as {definition} takes {expected.__name__}"
    if annotated is _CONTEXTS[kind, not is_blocking]:
        remedy += f"; write {'`async def`' if is_blocking else 'plain `def`'} to keep {shown}"
    what = f"parameter {parameter} of handler {annotations.name} is annotated {shown}"
    raise RegistrationError(what, parameter=parameter, remedy=remedy)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function)).replace("<locals>.", "")


@dataclass(frozen=True, slots=True)
class _Annotations:
    """The annotations of one function and the names that they may use."""

    name: str
    raw: Mapping[str, Any]
    module: dict[str, Any]
    names: Mapping[str, Any]

    @classmethod
    def around(cls, function: Callable[..., Any]) -> "_Annotations":
        inner = inspect.unwrap(function)
        module: dict[str, Any] = getattr(inner, "__globals__", {})
        scopes = ChainMap(_closure(inner), *_scopes_around(module))
        return cls(_name_of(function), dict(inspect.get_annotations(inner)), module, scopes)

    def boundary(self, parameter: str, refusal: type[InvalidInput] | type[InvalidOutput]) -> Boundary[Any]:
        is_result = parameter == _RETURN
        remedy = "annotate it, `-> None` if it returns nothing" if is_result else "annotate it with its type"
        form = self.form(parameter, remedy)
        try:
            where = "result" if is_result else parameter
            return make_boundary(form, where=where, refusal=refusal, names=self.names)
        except RegistrationError as error:
            what = f"{self._described(parameter)}: {error.what}"
            raise RegistrationError(what, parameter=parameter, remedy=error.remedy) from error

    def form(self, parameter: str, remedy: str) -> Any:
        if parameter not in self.raw:
            what = f"{self._described(parameter)} has no annotation"
            raise RegistrationError(what, parameter=parameter, remedy=remedy)
        try:
            return self._resolved(self.raw[parameter])
        except NameError as error:
            what = f"{self._described(parameter)} is annotated {self.raw[parameter]!r}, and {error}"
            remedy = "annotations are read at run time: import the name outside `if TYPE_CHECKING:`, define it before"
            raise RegistrationError(what, parameter=parameter, remedy=remedy) from error
        except Exception as error:
            what = f"{self._described(parameter)} is annotated {self.raw[parameter]!r}, which can't be read ({error})"
            raise RegistrationError(what, parameter=parameter, remedy="annotate it with a type") from error

    def _resolved(self, annotation: object) -> Any:
        # get_type_hints also resolves the strings within, as in list["Item"].
        holder = SimpleNamespace(__annotations__={_RETURN: annotation})
        return typing.get_type_hints(holder, self.module, dict(self.names), include_extras=True)[_RETURN]

    def _described(self, parameter: str) -> str:
        return f"the result of {self.name}" if parameter == _RETURN else f"parameter {parameter} of {self.name}"


def _closure(function: Any) -> dict[str, Any]:
    code: CodeType | None = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    names = code.co_freevars if code else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=False) if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  reading is the question
    except ValueError:
        return False
    return True


def _scopes_around(module: dict[str, Any]) -> list[dict[str, Any]]:
    """Names of the functions and classes that are being run in the module, the innermost first."""
    scopes: list[dict[str, Any]] = []
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is module and frame.f_locals is not module:
            scopes.append(frame.f_locals)
        frame = frame.f_back
    return scopes


def result_boundary(action: Callable[..., Any], name: str) -> Boundary[Any]:
    """The boundary of what a step's action returns, by its annotation; plain data where it has none.

    Raises:
        RegistrationError: The annotation can't be resolved, or is no type that can be written down.
    """
    return _boundary_of_result(result_form(action), name)


def result_form(action: Callable[..., Any]) -> Any:
    """The type of what a step's action returns, by its annotation; `Any` where it has none.

    Raises:
        RegistrationError: The annotation can't be resolved.
    """
    function = _function_of(action)
    if function is None:
        return Any
    # Functions inside others are made anew each time, and would only fill the cache.
    return _result_form(function) if "<locals>" in function.__qualname__ else _kept_result_form(function)


def _boundary_of_result(form: Any, name: str) -> Boundary[Any]:
    return boundary_of(form, where=f"result of step {name}", refusal=InvalidOutput)


def _result_form(function: FunctionType) -> Any:
    annotation = inspect.get_annotations(function).get(_RETURN, Any)
    if isinstance(annotation, type):
        return annotation
    return _awaited(_Annotations.around(function).form(_RETURN, "")) if annotation is not Any else Any


_kept_result_form = functools.lru_cache(maxsize=1024)(_result_form)


def _function_of(action: Any) -> FunctionType | None:
    while isinstance(action, functools.partial):
        action = cast("functools.partial[Any]", action).func
    action = inspect.unwrap(getattr(action, "__func__", action))
    if inspect.isfunction(action):
        return action
    call = vars(cast("type[object]", type(action))).get("__call__")
    return call if inspect.isfunction(call) else None


def _awaited(form: Any) -> Any:
    """What a plain function's annotation promises once it is awaited."""
    if typing.get_origin(form) in (Awaitable, Coroutine):
        return typing.get_args(form)[-1]
    return form
