"""MHSAN's checkpoints: a model whose scores are those of the published one, and one error for what does not fit."""

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


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("layers", [1, 3])
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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "img_emb.module.spaConv.weight",
            torch.zeros(8, 6, 3, 3),
            r"spaConv\.weight has shape \(8, 6, 3, 3\), expected",
        ),
        ("cap_emb.module.rnn.rnn_lst.1.weight", torch.zeros(8, 25), r"rnn_lst\.1\.weight has shape .* 3 or 4 times 8"),
        ("cap_emb.module.rnn.rnn_lst.0.scale_x", torch.tensor([1.7]), r"scale_x is not 1: highways are not scaled"),
        ("cap_emb.module.rnn.rnn_lst.3.weight", torch.zeros(8, 24), r"rnn_lst\.2\.weight is missing"),
        ("fc.weight", torch.zeros(1), r"tensor state_dict\.fc\.weight is there twice, with and without module"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, name: str, value: torch.Tensor, message: str) -> None:
    checkpoint = mhsan_checkpoint()
    checkpoint["state_dict"][name] = value
    with pytest.raises(ValueError, match=rf"x.pth: .*{message}"):
        import_checkpoint(save(checkpoint, tmp_path / "x.pth"), VOCABULARY, Words(*word_files(tmp_path)))


def test_words_that_do_not_fit_are_named(tmp_path: Path) -> None:
    path = save(mhsan_checkpoint(), tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"x.pth: a checkpoint of MHSAN, which has no word vectors"):
        import_checkpoint(path, VOCABULARY)
    table, dictionary = word_files(tmp_path, ("eos", "unk"))
    with pytest.raises(ValueError, match=r"dictionary.txt: has no word UNK"):
        import_checkpoint(path, VOCABULARY, Words(table, dictionary))
    dictionary.write_text("eos\nUNK\ncat\n")
    np.save(table, np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match=r"utable.npy: vectors have 5 dimensions, but the model reads 4"):
        import_checkpoint(path, VOCABULARY, Words(table, dictionary))
