"""MHSAN's checkpoints: a model whose scores are those of the published one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from crossret.compat.checkpoints import Words, import_checkpoint
from crossret.data.vocabulary import UNKNOWN
from tests.compat.checkpoints.published import (
    FEATURE_DIM,
    VOCABULARY,
    mhsan_caption,
    mhsan_checkpoint,
    mhsan_image,
    save,
    word_files,
)


@pytest.mark.parametrize(("layers", "scale"), [(1, None), (3, 1.0)])
def test_the_model_scores_as_the_published_one(tmp_path: Path, layers: int, scale: float | None) -> None:
    checkpoint = mhsan_checkpoint(layers=layers, scale=scale)
    words = Words(*word_files(tmp_path))
    model = import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY, words)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 4, 6, generator=generator)
    tokens = torch.tensor([[4, 5, 6, 3], [5, 4, 0, 0]])  # dog cat mat <unk>; cat dog
    table = torch.from_numpy(np.load(words.table))
    rows = [[3, 2, 1, 1], [2, 3]]  # of eos, UNK, cat, dog; mat is not among them
    captions = torch.stack([mhsan_caption(checkpoint, table[row]) for row in rows])
    images = torch.stack([mhsan_image(checkpoint, image) for image in features])
    with torch.no_grad():
        scores = model.score(model.encode_images(features), model.encode_captions(tokens, torch.tensor([4, 2])))
    torch.testing.assert_close(scores, images @ captions.T, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.text.embed.weight[UNKNOWN], table[1])
    assert not model.text.embed.weight[:UNKNOWN].any()


def test_both_ways_are_what_is_asked_for(tmp_path: Path) -> None:
    """The same tensors, half of the states from the end."""
    path, words = save(mhsan_checkpoint(), tmp_path / "x.pth"), Words(*word_files(tmp_path))
    models = [import_checkpoint(path, VOCABULARY, words, bidirectional=way) for way in (False, True)]
    for name, tensor in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], tensor)
    tokens, lengths = torch.tensor([[4, 5, 6]]), torch.tensor([3])
    one, other = (model.text(tokens, lengths)[0] for model in models)
    half = FEATURE_DIM // 2
    assert not torch.allclose(one[:, half:], other[:, half:])
