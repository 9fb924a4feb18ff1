"""Commands with the fields of a dataclass among their options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

Command: TypeAlias = Callable[..., None]


def with_fields(place: str, options: type[Any]) -> Callable[[Command], Command]:
    """Decorate a command: in the place of its parameter ``place`` it has the fields of ``options`` as options.

    Args:
        place: a parameter of the command, which gets an object of ``options``.
        options: a dataclass whose fields are annotated as a command's parameters are.
    """
    fields = inspect.signature(options, eval_str=True).parameters

    def decorate(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            parameters += fields.values() if parameter.name == place else [parameter]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]

        @functools.wraps(command)
        def with_them(**arguments: Any) -> None:
            chosen = options(**{name: arguments.pop(name) for name in fields})
            command(**arguments, **{place: chosen})

        vars(with_them)["__signature__"] = inspect.Signature(parameters)
        with_them.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_them

    return decorate
