"""Errors of writing name the file, also those that the system gives no name."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from crossret.files.naming import named_errors


def test_an_error_without_a_name_gets_it() -> None:
    with pytest.raises(OSError, match=r"disk is full: 'scenes/a.png'") as caught, named_errors(Path("scenes/a.png")):
        raise OSError(errno.ENOSPC, "disk is full")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "scenes/a.png")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "missing", "b"), ChildProcessError("it died"), ValueError("c")]
)
def test_what_has_a_name_or_is_no_error_of_the_system_stays(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, named_errors("a"):
        raise error
    assert caught.value is error
