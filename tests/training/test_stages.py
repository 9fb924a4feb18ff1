"""Parameters that are not trained in every epoch, and optimizers: what a step changes, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossret.training.summary import count_learnt
from tests.training.toy import (
    CONFIG,
    DroppingScan,
    Gradients,
    SpoiltCorpus,
    checkpoint_tensors,
    make_model,
    run,
)


class StagedScan(DroppingScan):
    """SCAN whose text is trained in the second epoch and from then on, and its images in the first two alone."""

    def trains(self, parameter: str, epoch: int) -> bool:
        return epoch >= 1 if parameter.startswith("text.") else epoch < 2


def make_staged(seed: int = 0) -> StagedScan:
    torch.manual_seed(seed)
    return StagedScan(make_model().config)


def weights(out_dir: Path) -> dict[str, torch.Tensor]:
    tensors = checkpoint_tensors(out_dir)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}


def test_only_what_a_stage_trains_is_changed(tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in make_staged().state_dict().items()}
    config = replace(CONFIG, weight_decay=0.1)  # which moves whatever the optimizer takes for trained
    steps = []
    for epochs in (1, 2, 3):
        run(tmp_path, replace(config, epochs=epochs), model=make_staged(), resume=epochs > 1)
        after = weights(tmp_path)
        changed = {name.split(".")[0] for name, tensor in after.items() if not torch.equal(tensor, before[name])}
        assert changed == [{"image"}, {"image", "text"}, {"text"}][epochs - 1]
        before = after
        tensors = checkpoint_tensors(tmp_path)
        counts = {name: int(tensors[name].item()) for name in tensors if name.startswith("optimizer.step.")}
        steps.append({(name.split(".")[2], count) for name, count in counts.items()})
    # An optimizer has a state of what it has trained, and of nothing else.
    assert steps == [{("image", 6)}, {("image", 12), ("text", 6)}, {("image", 12), ("text", 12)}]


def test_parameters_are_as_trainable_afterwards_as_before(tmp_path: Path) -> None:
    model = make_staged()
    model.text.embed.weight.requires_grad_(False)
    frozen = model.text.embed.weight.detach().clone()
    run(tmp_path / "whole", model=model)
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == {name for name, _ in model.named_parameters()} - {"text.embed.weight"}
    assert torch.equal(model.text.embed.weight, frozen)
    model = make_staged()
    with pytest.raises(ValueError, match="the loss is nan"):
        run(tmp_path / "broken", replace(CONFIG, epochs=1), model=model, train_data=SpoiltCorpus(22))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_frozen_words_keep_their_values_and_cost_nothing(tmp_path: Path) -> None:
    model = make_model(freeze_words=True)
    before = model.text.embed.weight.detach().clone()
    reached: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: reached.append(name))
    run(tmp_path, replace(CONFIG, epochs=1, weight_decay=0.1), model=model)
    assert torch.equal(weights(tmp_path)["text.embed.weight"], before)
    assert "text.rnn.weight_ih_l0" in reached
    assert "text.embed.weight" not in reached
    assert not any(name.startswith("optimizer.") and "embed" in name for name in checkpoint_tensors(tmp_path))
    assert count_learnt(model, CONFIG) == count_learnt(make_model(), CONFIG) - before.numel()
    run(tmp_path, replace(CONFIG, epochs=2, weight_decay=0.1), model=make_model(freeze_words=True), resume=True)
    assert torch.equal(weights(tmp_path)["text.embed.weight"], before)


def test_what_is_not_trained_takes_no_share_of_the_gradient_s_norm(tmp_path: Path) -> None:
    model, gradients = make_staged(), Gradients()
    run(tmp_path, replace(CONFIG, epochs=1, gradient_norm=1e-3), model=model, callbacks=[gradients])
    images = {name for name, _ in model.named_parameters() if name.startswith("image.")}
    assert all(taken.keys() == images for taken in gradients.taken)
    assert gradients.norms() == pytest.approx([1e-3] * 6, rel=1e-2)
    counted = sum(parameter.numel() for parameter in model.image.parameters())
    assert count_learnt(model, replace(CONFIG, epochs=1)) == counted  # what a later stage would train is not
