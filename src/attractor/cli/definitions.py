"""Read configurations and options from their source, since importing their modules loads PyTorch, which takes seconds.

A class, table or function is executed as it stands in its file when it is first named, after all that it names. Left
out are other packages, classes without fields, and most methods, since they check values by building layers. So
configurations have their fields and defaults, and tables have their entries. The help of an option is the docstring
under its field. Python keeps no such docstring, so a class that was read here has them as `docstrings`.
"""

import __future__

import ast
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, TypeVar

PACKAGE = Path(__file__).parents[1]
READ = ("attention", "cli", "models", "tasks", "train.config")  # rooms and modules of configurations and options
# modules of attractor that load at once
IMPORTED = ("attractor.errors", "attractor.fields", "attractor.console", "attractor.files.code")
METHODS = ("replace", "_refuse_unknown", "to_dict", "seq_len", "resolved")  # those that need no other package
Value = TypeVar("Value")
POSITIONAL = "positional"
STAND_INS: dict[str, Any] = {
    "torch": SimpleNamespace(nn=SimpleNamespace(Module=object)),
    "tyro.conf": SimpleNamespace(Positional=Annotated[Value, POSITIONAL], UseAppendAction=Annotated[Value, ""]),
}


class Definitions(ModuleType):
    """What a module defines without other packages. Each definition is executed when it is first named."""

    def __init__(self, name: str) -> None:
        super().__init__(f"definitions of {name}")
        sys.modules[self.__name__] = self  # where dataclasses look for the names of annotations
        path = PACKAGE.joinpath(*name.split("."))
        self._file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(self._file.read_text(encoding="utf-8"))
        self.statements = {name: node for node in tree.body for name in names_bound(node)}
        self._waiting = dict(self.statements)

    def __getattr__(self, name: str) -> Any:
        node = self._waiting.pop(name, None)
        if isinstance(node, ast.Import | ast.ImportFrom):
            vars(self).update(imported(node, name))
        elif node is not None:
            self._execute(node)
        if name not in vars(self):
            raise AttributeError(f"{self.__name__} has no {name}")
        return vars(self)[name]

    def _execute(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ClassDef):
            kept = [part for part in node.body if not isinstance(part, ast.FunctionDef) or part.name in METHODS]
            node.body = kept or [ast.Pass()]
        used = node.value if isinstance(node, ast.AnnAssign) and node.value else node  # without the type of a table
        named = {part.id for part in ast.walk(used) if isinstance(part, ast.Name)}
        if isinstance(node, ast.ClassDef) and not named & {"dataclass", "NamedTuple"}:
            return
        for name in named & self._waiting.keys():
            getattr(self, name, None)
        whole = ast.fix_missing_locations(ast.Module([node], []))
        code = compile(whole, self._file, "exec", __future__.annotations.compiler_flag)
        try:
            exec(code, vars(self))
        except (NameError, AttributeError):  # it needs another package
            return
        if isinstance(node, ast.ClassDef):
            made = vars(self)[node.name]
            made.docstrings = docstrings(node)
            for field in fields(made) if is_dataclass(made) else ():
                field.type = evaluated(field.type, vars(self))


definitions = cache(Definitions)


def names_bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module gives a value."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]


def imported(node: ast.Import | ast.ImportFrom, name: str) -> dict[str, Any]:
    """Return the value of an imported name, unless it is one of another package."""
    alias = next(alias for alias in node.names if name == (alias.asname or alias.name))
    source = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
    room = source.removeprefix("attractor.")
    if source in STAND_INS:
        origin = STAND_INS[source]
    elif source in IMPORTED or source.partition(".")[0] in sys.stdlib_module_names:
        origin = import_module(source)
    elif f"{room}.".startswith(tuple(f"{part}." for part in READ)):
        origin = definitions(room)
    else:
        return {}
    if isinstance(node, ast.Import):
        return {name: origin}
    return {name: getattr(origin, alias.name)} if hasattr(origin, alias.name) else {}


def evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    try:
        return eval(annotation, names) if isinstance(annotation, str) else annotation
    except (NameError, TypeError):
        return annotation


def docstrings(node: ast.ClassDef) -> dict[str, str]:
    """Return the docstring under each field of a class, in one line."""
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
