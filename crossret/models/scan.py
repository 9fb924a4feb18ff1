"""SCAN: Stacked Cross Attention for Image-Text Matching (Lee et al., ECCV 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from crossret.config import check_at_least, check_positive
from crossret.encoded import Encoded, check_lengths
from crossret.encoders import RegionEncoder, WordEncoder, check_tokens
from crossret.losses import TripletLoss
from crossret.models.protocol import ModelConfig
from crossret.presets import SCAN_PRESETS
from crossret.scorers import CrossAttentionScorer, EnsembleScorer, SumMaxScorer

CrossAttention: TypeAlias = Literal["t2i", "i2t", "ensemble", "sum_max_t2i", "sum_max_i2t"]
Pooling: TypeAlias = Literal["lse", "avg", "sum", "max"]
RawFeatureNorm: TypeAlias = Literal[
    "softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm"
]

# Sizes beyond any real model are refused, so that no product of two overflows when a stranger's file names them.
_LARGEST_SIZE = 2**24


@dataclass(frozen=True)
class ScanConfig(ModelConfig):
    """Hyper-parameters of SCAN; the defaults are the paper's Text-Image AVG model.

    Attributes:
        image_dim, vocabulary_size: the sizes of its input, as ``ModelConfig``.
        embed_dim: D, length of region and word embeddings and of the GRU's state.
        word_dim: length of a word's embedding, the GRU's input.
        bidirectional: bidirectional GRU, or a forward one (Table 4).
        image_norm, text_norm: L2-normalise every region and every word; without ``image_norm``, Table 4's ablation.
        region_count: keep an image's first k regions, which detectors list by confidence (Table 5); None keeps all.
        cross_attention: "t2i" (Text-Image, Eqs. 7, 8), "i2t" (Image-Text, Eqs. 5, 6), "sum_max_t2i" (Eq. 9),
            "sum_max_i2t" (Eq. 10), or "ensemble": the mean of t2i and i2t scores over the same encoders. The paper's
            own ensembles (Section 4.2) average two models that were trained apart: average their score matrices.
        raw_feature_norm, clip_slope: normalisation of similarities; the paper's [s]₊ is clip_slope 0, its code's 0.1.
        lambda_softmax, pooling, lambda_lse: λ₁, pooling and λ₂ of the one direction, of t2i in an ensemble.
            Sum-Max uses none of them. λ₂ is used by "lse" alone.
        i2t_lambda_softmax, i2t_pooling, i2t_lambda_lse: the same of i2t in an ensemble, used there alone.
        margin: alpha of the triplet loss.
        negatives: "hardest" (Eq. 12), or "sum" over all negatives of the batch (Eq. 11).

    Raises:
        TypeError, ValueError: a field is out of its range; the message names it.
    """

    embed_dim: int = 1024
    word_dim: int = 300
    bidirectional: bool = True
    image_norm: bool = True
    text_norm: bool = True
    region_count: int | None = None
    cross_attention: CrossAttention = "t2i"
    raw_feature_norm: RawFeatureNorm = "clipped_l2norm"
    clip_slope: float = 0.1
    lambda_softmax: float = 9.0
    pooling: Pooling = "avg"
    lambda_lse: float = 6.0
    i2t_lambda_softmax: float = 4.0
    i2t_pooling: Pooling = "avg"
    i2t_lambda_lse: float = 5.0
    margin: float = 0.2
    negatives: Literal["hardest", "sum"] = "hardest"

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("image_dim", "vocabulary_size", "embed_dim", "word_dim")
        check_at_least(self, 1, *sizes, *(["region_count"] if self.region_count is not None else []))
        for name in sizes:
            if getattr(self, name) > _LARGEST_SIZE:
                raise ValueError(f"{name} must be at most {_LARGEST_SIZE}, not {getattr(self, name)}")
        check_positive(self, "lambda_softmax", "lambda_lse", "i2t_lambda_softmax", "i2t_lambda_lse")
        check_at_least(self, 0, "clip_slope", "margin")

    @classmethod
    def preset(cls, name: str, **fields: Any) -> ScanConfig:
        """The paper's setting of this name (see ``crossret.presets``), with ``fields`` set or replaced.

        Raises:
            ValueError: no preset has this name.
        """
        if name not in SCAN_PRESETS:
            raise ValueError(f"preset must be one of {', '.join(SCAN_PRESETS)}, not {name!r}")
        return cls(**{**SCAN_PRESETS[name], **fields})

    def unused(self) -> list[str]:
        """The fields that make no difference to this model, because of what other fields say."""
        attention = ["raw_feature_norm", "clip_slope", "lambda_softmax", "pooling", "lambda_lse"]
        of_i2t = ["i2t_lambda_softmax", "i2t_pooling", "i2t_lambda_lse"]
        if self.cross_attention in ("sum_max_t2i", "sum_max_i2t"):
            return attention + of_i2t
        unused = [] if self.cross_attention == "ensemble" else of_i2t
        if not self.raw_feature_norm.startswith("clipped"):
            unused.append("clip_slope")
        if self.pooling != "lse":
            unused.append("lambda_lse")
        if self.cross_attention == "ensemble" and self.i2t_pooling != "lse":
            unused.append("i2t_lambda_lse")
        return unused

    def attention_options(self, direction: Literal["t2i", "i2t"]) -> dict[str, Any]:
        """The keyword arguments with which ``crossret_kernels.scan_scores`` computes this direction.

        Raises:
            ValueError: the model does not attend in this direction.
        """
        if self.cross_attention not in (direction, "ensemble"):
            raise ValueError(f"direction {direction!r}: this model's cross_attention is {self.cross_attention!r}")
        prefix = "i2t_" if direction == "i2t" and self.cross_attention == "ensemble" else ""
        return {
            "direction": direction,
            "raw_feature_norm": self.raw_feature_norm,
            "clip_slope": self.clip_slope,
            **{name: getattr(self, prefix + name) for name in ("lambda_softmax", "pooling", "lambda_lse")},
        }


class Scan(nn.Module):
    """SCAN: regions by a linear layer, words by a GRU, compared by stacked cross attention.

    Parameters: ``image.fc.*``, ``text.embed.weight`` and ``text.rnn.*``; behind ``image.`` and ``text.`` the names are
    those of SCAN's published checkpoints.
    """

    kind: ClassVar[str] = "scan"

    def __init__(self, config: ScanConfig) -> None:
        super().__init__()
        self.config = config
        self.image = RegionEncoder(config.image_dim, config.embed_dim, normalize=config.image_norm)
        self.text = WordEncoder(
            config.vocabulary_size,
            config.word_dim,
            config.embed_dim,
            bidirectional=config.bidirectional,
            normalize=config.text_norm,
        )
        self.scorer = _scorer(config)
        self.triplet_loss = TripletLoss(config.margin, config.negatives)

    def encode_images(self, features: Tensor, lengths: Tensor | None = None) -> Encoded:
        """Embed the regions of each image.

        Args:
            features: (n, R, image_dim) floating point; the first ``region_count`` regions of each are kept.
            lengths: (n,) int64, regions in each image; None where all have R.

        Raises:
            ValueError: a shape does not fit, or a length is not in 1..R; names the argument and the image.
        """
        if features.dim() != 3 or features.shape[2] != self.config.image_dim:
            raise ValueError(f"features must have shape (n, R, {self.config.image_dim}), got {tuple(features.shape)}")
        if lengths is None:
            lengths = torch.full((len(features),), features.shape[1], dtype=torch.int64, device=features.device)
        check_lengths(lengths, features.shape[1])
        if self.config.region_count is not None:
            features = features[:, : self.config.region_count]
            lengths = lengths.clamp(max=self.config.region_count)
        return Encoded(self.image(features), lengths)

    def encode_captions(self, tokens: Tensor, lengths: Tensor) -> Encoded:
        """Encode each word in the context of its caption.

        Args:
            tokens: (n, W) int64 word numbers.
            lengths: (n,) int64, words in each caption.

        Raises:
            TypeError, ValueError: a shape or dtype does not fit, a number is not in the vocabulary, or a length is not
                in 1..W; names the argument and the place.
        """
        check_tokens(tokens, self.config.vocabulary_size)
        if lengths.shape != (len(tokens),):
            raise ValueError(f"lengths must have shape ({len(tokens)},), one a caption, got {tuple(lengths.shape)}")
        check_lengths(lengths, tokens.shape[1])
        return Encoded(self.text(tokens, lengths), lengths)

    def score(self, images: Encoded, captions: Encoded, pairs: Tensor | None = None) -> Tensor:
        """(n_images, n_captions) float32 scores, or (P,) for (P, 2) int64 ``pairs`` of (image, caption)."""
        scores: Tensor = self.scorer(
            images.sequences, captions.sequences, captions.lengths, images.lengths, pairs=pairs
        )
        return scores

    def loss(self, images: Encoded, captions: Encoded, image_ids: Tensor | None = None) -> dict[str, Tensor]:
        """The triplet loss, summed over a batch in which image i and caption i match: {"loss": scalar}.

        Args:
            images, captions: n entries each.
            image_ids: (n,) int64, which image entry i is about: two captions of one image are never each other's
                negatives. None where all differ.
        """
        return {"loss": self.triplet_loss(self.score(images, captions), image_ids)}


def _scorer(config: ScanConfig) -> nn.Module:
    if config.cross_attention == "sum_max_t2i":
        return SumMaxScorer("t2i")
    if config.cross_attention == "sum_max_i2t":
        return SumMaxScorer("i2t")
    if config.cross_attention == "ensemble":
        return EnsembleScorer(CrossAttentionScorer(**config.attention_options(way)) for way in ("t2i", "i2t"))
    return CrossAttentionScorer(**config.attention_options(config.cross_attention))
