"""Commands with other parameters than those of their functions: fields of a dataclass, numbers read as typed."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import typer

from crossret.files.numbers import decimal_number, whole_number

Command: TypeAlias = Callable[..., None]

_READ: dict[Any, Callable[[str], float]] = {int: whole_number, float: decimal_number}


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

        @functools.wraps(command)
        def with_them(**arguments: Any) -> None:
            chosen = options(**{name: arguments.pop(name) for name in fields})
            command(**arguments, **{place: chosen})

        return _with_parameters(with_them, parameters)

    return decorate


def with_numbers_as_typed(command: Command) -> Command:
    """Decorate a command: its numbers are read by ``crossret.files.numbers``, within the ranges of its options.

    What reads them otherwise takes 1.0 and 1_0 for whole numbers.
    """

    @functools.wraps(command)
    def with_them(**arguments: Any) -> None:
        command(**arguments)

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return _with_parameters(with_them, [_read_as_typed(parameter) for parameter in parameters])


def _with_parameters(command: Command, parameters: Iterable[inspect.Parameter]) -> Command:
    """Give a command the parameters that typer makes its options of."""
    by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    vars(command)["__signature__"] = inspect.Signature(by_name)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in by_name}
    return command


def _read_as_typed(parameter: inspect.Parameter) -> inspect.Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    declared, info = get_args(parameter.annotation)
    kinds = {part for kind in (declared, *get_args(declared)) for part in (kind, *get_args(kind))}
    kind = next((kind for kind in _READ if kind in kinds), None)
    if kind is None or info.parser is not None:
        return parameter
    info = copy.copy(info)
    info.parser = _parser(kind, info.min, info.max)
    return parameter.replace(annotation=Annotated[declared, info])


def _parser(kind: type[Any], least: float | None, most: float | None) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        try:
            number = _READ[kind](value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if least is not None and number < least:
            raise typer.BadParameter(f"must be at least {least}, not {value}")
        if most is not None and number > most:
            raise typer.BadParameter(f"must be at most {most}, not {value}")
        return number

    parse.__name__ = kind.__name__  # which --help may show
    return parse
