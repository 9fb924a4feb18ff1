"""What a training looks for before it writes anything: in all of its data, and on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from crossret.data.corpus import Corpus
from crossret.distributed import Group, Share
from crossret.evaluation.finiteness import check_features
from crossret.terminal import progress_bar


def check_all_features(corpora: Sequence[Corpus], group: Group, *, progress: bool) -> None:
    """As ``check_features``, by all ranks, each of which reads its share of the images.

    Args:
        corpora: the same on every rank.
        group: the ranks.
        progress: whether to show it on the terminal (standard error).

    Raises:
        ValueError: what ``check_features`` raises on any rank, on all of them. RankLost: another rank has ended.
    """
    found: str | None = None
    for corpus in corpora:
        share = Share.cut(group, corpus.n_images)
        try:
            with progress_bar("reading features") if progress else nullcontext() as show:
                check_features(corpus, items=share.encoded_rows, progress=show)
        except ValueError as error:
            found = found or str(error)
    wrong = next((message for message in group.values(found) if message is not None), None)
    if wrong is not None:
        raise ValueError(wrong)


def check_agreement(group: Group, own: Mapping[str, Any]) -> None:
    """Raise a ValueError on all ranks where they do not train the same: where one's facts, by name, are not all's."""
    first, *others = group.values(dict(own))
    for rank, other in enumerate(others, start=1):
        for name, value in first.items():
            if other.get(name) != value:
                raise ValueError(f"rank {rank} trains with {name} = {other.get(name)}, rank 0 with {value}")
