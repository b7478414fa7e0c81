"""The root of the tree of errors, which `errors` draws."""

from typing import Any, ClassVar


class KeylaneError(Exception):
    """The root of all errors that a user may catch.

    Attributes:
        code: Stable name of the kind of error, the same in every release.
        message: What happened, without the id that some kinds add when printed.
    """

    code: str = "keylane"
    field_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """What happened, in one sentence."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__.copy())


def _revive(kind: type[BaseException], arguments: tuple[object, ...], state: dict[str, object]) -> BaseException:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error
