"""Names that users give to splits and data sets: parts of a file's name, and no ways to somewhere else."""

from __future__ import annotations

_LONGEST = 100  # bytes: with what is put before and behind it a file's name has at most 255


def check_name(kind: str, name: str) -> None:
    """Refuse what is no name of a split or a data set, before it becomes a part of a path.

    Args:
        kind: the kind of thing it names, by which the error begins: "split".
        name: the name as the user typed it.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, longer than 100 bytes, or has "/", ".." or characters that are not printable.
    """
    if not isinstance(name, str):
        raise TypeError(f"{kind} must be a name, not {name!r}")
    # Halves of surrogate pairs are not printable, and no UTF-8.
    fits = name.isprintable() and len(name.encode()) <= _LONGEST
    if not name or not fits or "/" in name or ".." in name:
        shown = f"{name[:40]}…" if len(name) > _LONGEST else name
        raise ValueError(
            f"{kind} must be a name, 1 to {_LONGEST} bytes of printable characters without '/' and '..', not {shown!r}"
        )
