"""The options that say how features are scored, of `score` and `search`, and the score that they ask for."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from crossret.cli.options import option, spelling
from crossret.cli.signatures import with_fields
from crossret.hyperparameters import ScanConfig
from crossret.hyperparameters.model import Pooling
from crossret.hyperparameters.scan import RawFeatureNorm
from crossret.hyperparameters.settings import check_used, spelt

if TYPE_CHECKING:
    from crossret.search.blocks import Scorer

Direction = Literal["t2i", "i2t", "q2d", "d2q"]


@dataclass(frozen=True)
class ScoreOptions:
    """How features are scored; None is the default of the kernels."""

    direction: Annotated[
        Direction | None,
        option(
            "t2i: words attend to regions; i2t: regions to words. By default t2i. By their roles in a search, q2d: the "
            "rows of queries attend to those of what is searched, as in late interaction; d2q: the other way round."
        ),
    ] = None
    raw_feature_norm: Annotated[
        RawFeatureNorm | None, option("Normalisation of similarities; by default clipped_l2norm.")
    ] = None
    clip_slope: Annotated[float | None, option("Slope of the clip below zero; by default 0.1, the paper's is 0.")] = (
        None
    )
    lambda_softmax: Annotated[
        float | None, option("Inverse temperature of the attention; by default 9 (the paper's i2t: 4).")
    ] = None
    pooling: Annotated[Pooling | None, option("How relevances become a score; by default avg.")] = None
    lambda_lse: Annotated[float | None, option("Sharpness of LSE pooling; by default 6.")] = None
    normalize: Annotated[bool, option("L2-normalise all features first.", "--normalize")] = False
    sum_max: Annotated[bool, option("Instead of attention, sum each query's largest similarity.", "--sum-max")] = False

    def scorer(self, query: str | None = None) -> Scorer:
        """The kernels' score that these options ask for, where captions or images are the queries, or neither.

        Raises a ValueError where one is out of range or makes no difference.
        """
        from crossret_kernels import maxsim_scores, scan_scores

        fields = ("raw_feature_norm", "clip_slope", "lambda_softmax", "pooling", "lambda_lse")
        chosen = {name: value for name in fields if (value := getattr(self, name)) is not None}
        direction: Literal["t2i", "i2t"]
        if self.direction == "q2d" or self.direction == "d2q":
            if query is None:
                raise ValueError(f"--direction {self.direction} is for search; of regions and words take t2i or i2t")
            # Captions that ask attend to regions, images that ask to words.
            direction = "t2i" if (self.direction == "q2d") == (query == "caption") else "i2t"
        else:
            direction = self.direction or "t2i"
        # Options mean what they mean to a model, and have the same ranges; its sizes play no part.
        cross_attention = f"sum_max_{direction}" if self.sum_max else direction
        sizes = {"image_dim": 1, "vocabulary_size": 1}
        config = ScanConfig.from_dict({**sizes, "cross_attention": cross_attention, **chosen})
        check_used(config, chosen, lambda name, value: f"{spelling(name)} {spelt(value)}")
        if self.sum_max:
            return functools.partial(maxsim_scores, direction=direction, normalize=self.normalize)
        return functools.partial(scan_scores, **config.attention_options(direction), normalize=self.normalize)


with_score_options = with_fields("scoring", ScoreOptions)
