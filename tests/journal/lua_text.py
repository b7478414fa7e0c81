"""Reads the text of Lua functions as far as it takes to say which keys they touch.

The rules that it checks are narrower than the language, on purpose: a command is spelled out, its key is `keys[…]` or a
local name that stands for one, and `keys` is only ever indexed, counted, or handed on under the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

#: Tells which arguments behind a command's name are keys, counted from 0.
KeysOf: TypeAlias = Callable[[str], slice]

Tokens: TypeAlias = Sequence[str]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*)|(?P<token>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|\d+(?:\.\d+)?"""
    r"""|\.\.\.|\.\.|[=~<>]=|[-+*/%^#<>=(){}\[\];:,.])"""
)
_OPENERS = {"function", "if", "do", "repeat"}
_CLOSERS = {"end", "until"}
_STATEMENTS = {
    "local", "if", "while", "for", "return", "function", "end", "else", "elseif", "until", "do", "then", "repeat",
    "break",
}  # fmt: skip
_OPERATORS = {"and", "or", "not"}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
#: What the library may ask of the server.
_ALLOWED = {"call", "pcall", "error_reply", "register_function"}
#: Ways to run text, or to reach what has no name.
_FORBIDDEN = {"KEYS", "pcall", "xpcall", "load", "loadstring", "dofile", "getfenv", "setfenv", "rawget", "rawset"}


class NotReadableError(ValueError):
    """The text uses something of the language that is not read here."""


def tokens_of(text: str) -> list[str]:
    """Return the words of a text, without its comments."""
    found: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or text.startswith("--[[", position):
            raise NotReadableError(f"not read here: {text[position : position + 20]!r}")
        if match["token"]:
            found.append(match["token"])
        position = match.end()
    return found


@dataclass(frozen=True, slots=True)
class Call:
    """A call: what is called, and the tokens of each argument."""

    callee: str
    arguments: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return it about as it is written."""
        return f"{self.callee}({', '.join(' '.join(argument) for argument in self.arguments)})"


@dataclass(slots=True)
class Function:
    """A function of a file; what stands outside of all functions is one without a name."""

    name: str
    parameters: tuple[str, ...]
    body: list[str]
    assigned: dict[str, list[tuple[str, ...]]] = field(default_factory=dict[str, list[tuple[str, ...]]])

    def __post_init__(self) -> None:
        """Find what each local name is set to."""
        for names, values in _assignments(self.body):
            for position, name in enumerate(names):
                self.assigned.setdefault(name, []).append(values[position] if position < len(values) else ())

    @property
    def calls(self) -> list[Call]:
        """Every call in it, also those inside of arguments."""
        return list(_calls(self.body))

    def is_key(self, expression: Tokens) -> bool:
        """Return whether an expression is one of the declared keys."""
        match list(expression):
            case ["keys", "[", *_, "]"]:
                return "keys" in self.parameters and _closing(expression, 1) == len(expression) - 1
            case [name] if name in self.assigned:
                return name not in self.parameters and all(map(self.is_key, self.assigned[name]))
            case _:
                return False

    def is_parameter(self, expression: Tokens) -> bool:
        """Return whether an expression is a parameter that is never set to anything else."""
        return len(expression) == 1 and expression[0] in self.parameters and expression[0] not in self.assigned


def functions_of(text: str) -> list[Function]:
    """Return the functions of a file."""
    tokens = tokens_of(text)
    found: list[Function] = []
    outside: list[str] = []
    position = 0
    while position < len(tokens):
        if tokens[position] != "function":
            outside.append(tokens[position])
            position += 1
            continue
        opening = tokens.index("(", position)
        closing = _closing(tokens, opening)
        end = _end_of_block(tokens, position)
        parameters = tuple(token for token in tokens[opening + 1 : closing] if token != ",")
        name = "".join(tokens[position + 1 : opening])
        found.append(Function(name, parameters, tokens[closing + 1 : end]))
        position = end + 1
    return [*found, Function("", (), outside)]


def complaints(files: Mapping[str, str], keys_of: KeysOf) -> list[str]:
    """Return what is wrong with the keys that the functions of a library touch, or nothing.

    Args:
        files: The text of each file by its name.
        keys_of: Which arguments of a command are keys.
    """
    by_file = [(name, function) for name, text in files.items() for function in functions_of(text)]
    functions = [function for _, function in by_file]
    needed: dict[str, set[int]] = {}
    found: list[str] = []
    for name, function in by_file:
        found.extend(f"{name}: {text}" for text in _words_complaints(function))
        for call in function.calls:
            if call.callee in {"redis.call", "redis.pcall"}:
                found.extend(f"{name}: {text}" for text in _command_complaints(function, call, keys_of, needed))
    for name, function in by_file:
        found.extend(f"{name}: {text}" for text in _value_complaints(function, needed))
        for call in function.calls:
            found.extend(f"{name}: {text}" for text in _hand_over_complaints(function, call, functions, needed))
    return found


def _words_complaints(function: Function) -> Iterator[str]:
    """Check that nothing is reached by a way on which it could not be followed."""
    body = function.body
    for position, token in enumerate(body):
        before, after = body[position - 1] if position else "", body[position + 1 : position + 4]
        if (token in _FORBIDDEN and (before != "." or token not in _ALLOWED)) or token == "function":
            yield f"{token} is not allowed"
        if token in {"redis", "server"} and not (len(after) == 3 and after[0] == "." and after[1] in _ALLOWED):
            yield f"{token}{''.join(after)}: only {sorted(_ALLOWED)} are allowed"
        if token in _ALLOWED and before == "." and after[:1] not in (["("], ["{"]):
            yield f"{token} is used without being called"
        if token == "keys" and before != "#" and after[:1] not in (["["], [","], [")"]):
            yield "keys is used as something else than a list of keys"
    if "keys" in function.assigned:
        yield "keys is set to something"


def _command_complaints(function: Function, call: Call, keys_of: KeysOf, needed: dict[str, set[int]]) -> Iterator[str]:
    """Check one command; a key that is a parameter is noted, for the callers to be checked."""
    command = call.arguments[0]
    if len(command) != 1 or command[0][0] not in "'\"":
        yield f"{call}: the command is not spelled out"
        return
    for key in call.arguments[1:][keys_of(command[0][1:-1])]:
        if function.is_parameter(key) and key != ("keys",):
            needed.setdefault(function.name, set()).add(function.parameters.index(key[0]))
        elif not function.is_key(key):
            yield f"{call}: {' '.join(key)} is no declared key"


def _hand_over_complaints(
    function: Function, call: Call, functions: Sequence[Function], needed: Mapping[str, set[int]]
) -> Iterator[str]:
    """Check that a call hands on keys where the function that is called takes them for such, and nowhere else."""
    known = [each for each in functions if each.name and _may_be(each.name, call.callee)]
    for called in known:
        for position, parameter in enumerate(called.parameters):
            given = call.arguments[position] if position < len(call.arguments) else ()
            if parameter == "keys" and given != ("keys",):
                yield f"{call}: {called.name} is not given the keys"
            if position in needed.get(called.name, ()) and not function.is_key(given):
                yield f"{call}: {' '.join(given)} is no declared key"
    if ("keys",) in call.arguments and not any("keys" in called.parameters for called in known):
        yield f"{call}: nobody knows what becomes of the keys"


def _may_be(name: str, callee: str) -> bool:
    """Return whether a call may run a function; in a table of functions, any of them."""
    table, _, _ = name.rpartition(".")
    return callee == name or (table != "" and callee.startswith(f"{table}["))


def _value_complaints(function: Function, needed: Mapping[str, set[int]]) -> Iterator[str]:
    """Check that a function that takes a key is called by its name: under another one nobody would see what it gets."""
    for word, after in pairwise([*function.body, ""]):
        if word in needed and after != "(":
            yield f"{word} is used without being called"


def _calls(tokens: Sequence[str]) -> Iterator[Call]:
    for position, token in enumerate(tokens):
        if token != "(" or not position:
            continue
        start = _callee_start(tokens, position)
        if start == position:
            continue
        inside = tokens[position + 1 : _closing(tokens, position)]
        yield Call("".join(tokens[start:position]), tuple(tuple(argument) for argument in _split(inside)))


def _callee_start(tokens: Sequence[str], opening: int) -> int:
    """Return where what is called begins; `opening` where nothing is."""
    start = opening
    while start:
        before = tokens[start - 1]
        if before == "]":
            start = _opening(tokens, start - 1)
        elif re.match(r"[A-Za-z_]", before) and before not in _STATEMENTS | _OPERATORS:
            start -= 1
            if start and tokens[start - 1] in {".", ":"}:
                start -= 1
                continue
            return start
        else:
            return start
    return start


def _assignments(tokens: Sequence[str]) -> Iterator[tuple[list[str], list[tuple[str, ...]]]]:
    for position, token in enumerate(tokens):
        if token in {"=", "in"} and not _depth(tokens, position):
            names = _names_before(tokens, position)
            yield names, [tuple(value) for value in _split(tokens[position + 1 : _end_of_list(tokens, position + 1)])]


def _names_before(tokens: Sequence[str], position: int) -> list[str]:
    """Return the plain names on the left of a `=`; what is indexed is no name."""
    names: list[str] = []
    while position and re.fullmatch(r"[A-Za-z_]\w*", tokens[position - 1]):
        if position > 1 and tokens[position - 2] in {".", ":"}:
            return names
        names.insert(0, tokens[position - 1])
        if position < 2 or tokens[position - 2] != ",":
            break
        position -= 2
    return names


def _end_of_list(tokens: Sequence[str], position: int) -> int:
    """Return where a list of expressions ends: at a keyword, or where two operands follow each other."""
    while position < len(tokens):
        token = tokens[position]
        if token in _STATEMENTS:
            return position
        position = _closing(tokens, position) + 1 if token in _BRACKETS else position + 1
        following = tokens[position] if position < len(tokens) else ""
        if _ends_operand(tokens[position - 1]) and re.match(r"[\w'\"]", following) and following not in _OPERATORS:
            return position
    return position


def _ends_operand(token: str) -> bool:
    return token in {")", "]", "}"} or (re.match(r"[\w'\"]", token) is not None and token not in _OPERATORS)


def _depth(tokens: Sequence[str], position: int) -> int:
    before = tokens[:position]
    return sum(before.count(opener) - before.count(closer) for opener, closer in _BRACKETS.items())


def _split(tokens: Sequence[str]) -> list[list[str]]:
    """Split at the commas that are in no bracket."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in _BRACKETS) - (token in _BRACKETS.values())
        if token == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _closing(tokens: Sequence[str], opening: int) -> int:
    depth = 0
    for position in range(opening, len(tokens)):
        depth += (tokens[position] in _BRACKETS) - (tokens[position] in _BRACKETS.values())
        if not depth:
            return position
    raise NotReadableError("a bracket is not closed")


def _opening(tokens: Sequence[str], closing: int) -> int:
    depth = 0
    for position in range(closing, -1, -1):
        depth += (tokens[position] in _BRACKETS.values()) - (tokens[position] in _BRACKETS)
        if not depth:
            return position
    raise NotReadableError("a bracket is not opened")


def _end_of_block(tokens: Sequence[str], start: int) -> int:
    depth = 0
    for position in range(start, len(tokens)):
        depth += (tokens[position] in _OPENERS) - (tokens[position] in _CLOSERS)
        if not depth:
            return position
    raise NotReadableError("a block is not closed")
