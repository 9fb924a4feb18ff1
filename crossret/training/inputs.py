"""What a training looks for in all of its data before it writes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from crossret.data.corpus import Corpus
from crossret.distributed import Group, Share
from crossret.evaluation import Progress
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
            with _shown(progress) as show:
                check_features(corpus, items=share.encoded_rows, progress=show)
        except ValueError as error:
            found = found or str(error)
    wrong = next((message for message in group.values(found) if message is not None), None)
    if wrong is not None:
        raise ValueError(wrong)


@contextmanager
def _shown(enabled: bool) -> Iterator[Progress | None]:
    if not enabled:
        yield None
        return
    with progress_bar("reading features") as show:
        yield show
