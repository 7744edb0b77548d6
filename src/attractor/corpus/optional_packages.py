"""Import packages that only some sources and tokenizers need."""

from importlib import import_module
from types import ModuleType

from attractor.errors import not_installed


def require_package(package: str) -> ModuleType:
    """Import the package, or raise an InputError that says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise not_installed(package, "text") from error
