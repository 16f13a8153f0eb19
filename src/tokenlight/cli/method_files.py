"""Load a user's own method for one command: ``--method FILE.py:CLASS``."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.errors import BadInput, BrokenPlugin, MissingFile, UnknownName

_SUFFIX = ".py"


def is_method_file(spec: str) -> bool:
    """Return whether a value of ``--method`` names a Python file rather than a registered method.

    Example:
        >>> from tokenlight.cli.method_files import is_method_file
        >>> is_method_file("mine.py:GradientSize"), is_method_file("attcat:hidden=output")
        (True, False)
    """
    path, suffix, rest = spec.partition(_SUFFIX)
    return bool(path and suffix) and rest[:1] in ("", ":")


def load_method_file(spec: str) -> Any:
    """Run a Python file and return an instance of the method in it.

    Args:
        spec: ``FILE.py:CLASS``, or ``FILE.py:CLASS:option=value,…``. The class may be left out where the file
            has one method.

    Returns:
        The method.

    Raises:
        MissingFile: There is no such file.
        BrokenPlugin: The file cannot be run.
        UnknownName: It has no such class, or the class no such option.
        BadInput: The file has several methods or none, or an option has a value that is not valid.
    """
    path_text, _, rest = spec.partition(_SUFFIX)
    path = Path(path_text + _SUFFIX)
    class_name, _, option_text = rest.removeprefix(":").partition(":")
    classes = _find_methods(path)
    if class_name:
        if class_name not in classes:
            raise UnknownName.from_choices(f"method in {path}", class_name, classes)
        method_class = classes[class_name]
    elif len(classes) == 1:
        (method_class,) = classes.values()
    else:
        raise BadInput(
            f"{path} holds {len(classes)} methods, subclasses of tokenlight.plugin.Method "
            f"({', '.join(classes) or 'none'}). Name one with --method {path}:CLASS.",
            code="method-file-classes",
        )
    _, options = registry.parse_spec(f"{class_name}:{option_text}")
    return registry.build_class("methods", method_class.__name__, method_class, options)


def _find_methods(path: Path) -> dict[str, Any]:
    """Return the methods that a file defines, by the names of their classes."""
    if not path.is_file():
        raise MissingFile(f"{path} does not exist. Check its name.", code="method-file-missing")
    from tokenlight.plugin import Method  # after the check, since this import takes seconds

    name = path.stem
    if name in sys.modules:
        name = f"method_file_{name}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # Dataclasses look their module up; a file may import its neighbours, as a script does.
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # another person's file may raise anything
        raise BrokenPlugin(
            f"{path} cannot be run: {type(error).__name__}: {error}. Correct the file.",
            code="method-file-broken",
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return {
        value.__name__: value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == name
    }
