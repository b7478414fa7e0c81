"""Apps, and how the command line finds them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keylane.journal.errors import RegistrationError, UnknownObject
from keylane.objects.app import App, app_of, load_app
from keylane.objects.context import ObjectContext
from keylane.objects.settings import Settings
from keylane.objects.virtual_object import VirtualObject

order = VirtualObject("Order", owner="me")
customer = VirtualObject("Customer", owner="me")


@order.handler
async def refund(ctx: ObjectContext) -> None: ...


SHOP = """
from keylane.objects.app import App
from keylane.objects.virtual_object import VirtualObject

order = VirtualObject("Order", owner="me")
customer = VirtualObject("Customer", owner="me")
app = App([order, customer])
both = [order, customer]
nothing = None
number = 7

def make():
    return app

def make_list():
    return both

def needs(url, *, port):
    return app

async def awaits():
    return app

def nested():
    return make

@order.handler
async def refund(ctx: "ObjectContext") -> None: ...
""".replace("VirtualObject\n\n", "VirtualObject\nfrom keylane.objects.context import ObjectContext\n\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a working directory with modules of its own, and forget them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "kl_shop.py").write_text(SHOP)
    (tmp_path / "kl_bare.py").write_text("from kl_shop import order\n")
    (tmp_path / "kl_broken.py").write_text("import kl_not_there\n")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("kl_"):
            del sys.modules[name]


def test_an_app_knows_its_object_types_by_name() -> None:
    """It opens nothing; it only names."""
    app = App([order, customer])

    assert app.objects == {"Order": order, "Customer": customer}
    assert (app.find("Order"), repr(app)) == (order, "App([Order, Customer])")
    with pytest.raises(UnknownObject, match="no object type 'Odrer'; known object types: Customer, Order"):
        app.find("Odrer")


@pytest.mark.parametrize("hosted", [order, [order], (order,), iter([order]), App([order])])
def test_whatever_names_object_types_makes_an_app(hosted: Any) -> None:
    """`Runtime(app)` and `Runtime([order])` are the same."""
    assert app_of(hosted).objects == {"Order": order}


def test_settings_given_later_win() -> None:
    """A test may start a declared app with other numbers."""
    settings = Settings(lane_slots=1)

    assert app_of(App([order]), settings=settings).settings is settings


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([order, VirtualObject("Order", owner="you")], "two object types are named 'Order'"),
        ([], "App hosts nothing"),
        ([order, 7], "7 is no object type: list VirtualObjects"),
        ([refund], "list the VirtualObject 'Order'; its handlers come with it"),
        (["Order"], "'Order' is no object type"),
        (None, "objects is None: list VirtualObjects"),
    ],
)
def test_what_cannot_be_hosted_is_refused(objects: Any, words: str) -> None:
    """The error says what was found, and what to list."""
    with pytest.raises(RegistrationError, match=words):
        App(objects)


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("kl_shop", ["Order", "Customer"]),
        ("kl_shop:app", ["Order", "Customer"]),
        ("kl_shop:", ["Order", "Customer"]),
        ("kl_shop:order", ["Order"]),
        ("kl_shop:both", ["Order", "Customer"]),
        ("kl_shop:make", ["Order", "Customer"]),
        ("kl_shop:make_list", ["Order", "Customer"]),
        ("kl_bare:order", ["Order"]),
    ],
)
def test_an_app_is_found_in_the_working_directory(folder: Path, reference: str, names: list[str]) -> None:
    """As an App, an object type, a list of them, or a function that returns one."""
    assert list(load_app(reference).objects) == names
    assert sys.path[0] == str(folder)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("kl_nowhere:app", "there is no module 'kl_nowhere': run the command in the directory that holds it"),
        ("kl_nowhere.deep:app", "there is no module 'kl_nowhere'"),
        (
            "kl_shop.py:app",
            "there is no module 'kl_shop.py': write module:attribute, e.g. shop.orders:app, without .py",
        ),
        ("shop/kl_shop:app", "does not name a module: write module:attribute"),
        ("", "does not name a module"),
        ("kl_shop:nothing", "kl_shop:nothing is None: expected an App, a VirtualObject, a list of them"),
        ("kl_shop:number", "kl_shop:number is a builtins.int"),
        ("kl_shop:refund", "kl_shop:refund is a handler of 'Order'"),
        ("kl_shop:App", "kl_shop:App is a builtins.type"),
        ("kl_shop:needs", "kl_shop:needs is a function that takes url, port"),
        ("kl_shop:awaits", "kl_shop:awaits is not a plain function"),
        ("kl_shop:nested", r"kl_shop:nested\(\) returns a function"),
        ("kl_shop:missing", "kl_shop has no attribute 'missing': did you mean kl_shop:order or kl_shop:customer"),
        ("kl_bare", "kl_bare has no attribute 'app': did you mean kl_bare:order"),
        ("sys:missing", "sys has no attribute 'missing': define an App"),
    ],
)
def test_what_is_no_app_is_refused_by_saying_what_it_is(folder: Path, reference: str, words: str) -> None:
    """Whoever misspells a reference reads what was found instead."""
    with pytest.raises(RegistrationError, match=words):
        load_app(reference)


def test_an_error_inside_the_module_is_shown_as_it_is(folder: Path) -> None:
    """A missing dependency of the module is not mistaken for a missing module."""
    with pytest.raises(ModuleNotFoundError, match="kl_not_there"):
        load_app("kl_broken")
