"""One image beside one caption: what a model looks at, what its score is the sum of, and pictures and a page of it."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossret.explain.page.contents import Page, Pair
from crossret.explain.page.pairs import UNSEEN, UNSHARED, notes_of, pair_of
from crossret.explain.page.writing import page_html, write_page
from crossret.explain.photographs import draw_maps
from crossret.explain.rows import Rows
from crossret.models.attention import AttentionMap
from crossret.models.contributions import ScoreShares
from crossret.models.encoded import Encoded
from crossret.models.protocol import Matcher, evaluating


@dataclass(frozen=True)
class Explanation:
    """Attention of a model in one image beside one caption, and the terms of its score.

    Attributes:
        caption: the caption.
        rows: names of the caption's rows in maps and shares: <start>, its words and <end>, or, of a model
            that reads tokens, the words that these are of.
        maps: the model's attention, one entry a way of looking, each of one pair.
        score: the pair's.
        contributions: terms that add up to the score, of one pair as the maps are. None where the score is no sum
            (VSE++, MHSAN, HAN's global matching).
        boxes: (R, 4) float32 x0, y0, x1, y1 of the regions in pixels; None where they are a grid.
        picture: the image's file, where it was one.
        boxes_in: the regions of a picture's file as the model's encoder crops and cuts it, in the place of ``boxes`` or
            of a grid over all of it; None where ``boxes`` were given, or pictures are read by no encoder.
    """

    caption: str
    rows: Rows
    maps: tuple[AttentionMap, ...]
    score: float
    contributions: ScoreShares | None = None
    boxes: NDArray[np.float32] | None = None
    picture: Path | None = None
    boxes_in: Callable[[Path], NDArray[np.float32]] | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(
        model: Matcher,
        image: Encoded,
        caption: Encoded,
        text: str,
        *,
        spans: NDArray[np.int32] | None = None,
        boxes: NDArray[np.float32] | None = None,
        picture: Path | None = None,
        boxes_in: Callable[[Path], NDArray[np.float32]] | None = None,
    ) -> Explanation:
        """Explain one encoded image beside one encoded caption of this text.

        Args:
            model: the model that encoded both; in evaluation mode meanwhile.
            spans: (W, 2), of each token of the caption the characters of its word, where the model reads such.
            boxes, picture, boxes_in: as the attributes.

        Raises:
            ValueError: the score is no finite number.
        """
        image, caption = image.trimmed(), caption.trimmed()  # without the padding that other items needed
        with evaluating(model):
            maps, shares = model.attention(image, caption), model.contributions(image, caption)
            score = float(model.score(image, caption) if shares is None else shares.scores)
        if not np.isfinite(score):
            raise ValueError(f"the score of {text!r} with the image is {score}: are all features finite?")
        rows = Rows.of(model.config, text, int(caption.lengths), spans)
        return Explanation(text, rows, rows.merged(maps), score, rows.merged_shares(shares), boxes, picture, boxes_in)

    @property
    def words(self) -> list[str]:
        """The caption's words, as the model reads them."""
        return list(self.rows.words)

    def draw(self, picture: str | os.PathLike[str], output: str | os.PathLike[str]) -> list[Path]:
        """Draw the attention over the picture, as SCAN Fig. 4.

        Args:
            picture: the image's file.
            output: the PNG to write; of a model with several maps their names are put behind its own, ``dog-t2i.png``.

        Returns:
            The files, one a map.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: the picture is malformed; the regions have no boxes and are no grid, a square number of them;
                the model's encoder reads another number of them; or the model does not attend over regions.
        """
        if not self.maps:
            raise ValueError("the model does not attend over regions, there is nothing to draw")
        picture = Path(picture)
        return draw_maps(self.maps, self.rows, {}, self._boxes_over(picture), picture, Path(output))

    def html(self, output: str | os.PathLike[str], picture: str | os.PathLike[str] | None = None) -> None:
        """Write one page that shows it: words that light up regions, and what the score is the sum of.

        Args:
            output: the file.
            picture: the image's; None is its own or, without one, shows the regions alone.

        Raises:
            OSError, ValueError: as ``draw``.
        """
        write_page(self._page(self.picture if picture is None else Path(picture)), output)

    def _repr_html_(self) -> str:
        """The page in a notebook."""
        page = html.escape(page_html(self._page(self.picture)))
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" style="width:100%;height:760px;border:0"></iframe>'

    def pair(self, picture: Path | None, **more: Any) -> Pair:
        """A page's pair, over this picture or over nothing, with more of ``Pair``'s fields; raises as ``pair_of``."""
        own = self.caption, self.rows.labels, self.maps, self.score, self.contributions, self._boxes_over(picture)
        return pair_of(*own, picture, **more)

    def _boxes_over(self, picture: Path | None) -> NDArray[np.float32] | None:
        """Where the regions lie in a picture, which may be another file than the one that was read, of other size."""
        if picture is None or picture == self.picture or self.boxes_in is None:
            return self.boxes
        boxes = self.boxes_in(picture)
        attended = max((attention.weights.shape[2] for attention in self.maps), default=0)  # some maps have fewer
        explained = max(attended, len(boxes)) if self.boxes is None else len(self.boxes)
        if len(boxes) != explained:
            raise ValueError(f"{picture}: the model reads {len(boxes)} regions of it, but {explained} are explained")
        return boxes

    def _page(self, picture: Path | None) -> Page:
        pairs = [self.pair(picture)]
        return Page("Where the model looks", pairs, unseen=UNSEEN, unshared=UNSHARED, notes=notes_of(pairs))
