"""Option --candidates of `search`: a file of candidates, or an index that finds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from crossret.cli.errors import refuse

if TYPE_CHECKING:
    from crossret.progress import Progress
    from crossret.search.matching import Side


@dataclass(frozen=True)
class CandidateOption:
    """Source of candidates: a file, an index of nearest vectors with how many it finds, or neither."""

    given: str | None
    count: int

    INDEXES: ClassVar = {"faiss": "muvera", "faiss-mean": "mean"}

    @staticmethod
    def of(given: str | None, count: int | None, k: int) -> CandidateOption:
        if given not in CandidateOption.INDEXES:
            refuse({"n_candidates": count}, "is for --candidates faiss")
            if given is not None and not Path(given).is_file():
                raise ValueError(f"--candidates {given}: no such file")
        return CandidateOption(given, count or max(200, 20 * k))

    @property
    def path(self) -> Path | None:
        return None if self.given is None or self.given in self.INDEXES else Path(self.given)

    def of_queries(self, queries: Side, corpus: Side, normalize: bool, progress: Progress) -> Any:
        """(n_queries, K) items of the corpus, -1 for none."""
        from crossret.search.candidates import read_candidates
        from crossret.search.nearest import nearest_candidates

        if self.path is not None:
            return read_candidates(self.path)
        assert self.given is not None
        vectors = self.INDEXES[self.given]
        return nearest_candidates(queries, corpus, vectors, self.count, normalize, progress)
