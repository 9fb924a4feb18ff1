"""Gradients of encoders in the memory of a few items: encodings are kept, and their graphs made again chunk by chunk.

Luyu Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from crossret.models.encoded import Encoded
from crossret.training.randomness import random_state, set_random_state


class GradientCache:
    """Items encoded in chunks without a graph, for a loss over all of them that is to be as large as memory allows.

    A loss is made of ``encoded`` and goes backward, then ``backward`` encodes the chunks again, each with its graph and
    the same random numbers, and goes on from the encodings' gradients. Of activations there are those of one chunk.
    Encoding takes twice the time. What an encoder counts in training, as statistics of a batch, it counts twice, and
    chunk by chunk.

    Args:
        encode: the encodings of some items, for instance ``lambda rows: model.encode_images(features[rows])``; called
            twice for every chunk, and must give the same twice but for random numbers of torch's default generators.
        n: how many items there are.
        chunk: how many are encoded at a time.
        device: where the model is.

    Attributes:
        encoded: n entries; floating-point tensors require a gradient.

    Raises:
        ValueError: ``chunk`` or ``n`` is less than 1.
    """

    def __init__(self, encode: Callable[[slice], Encoded], n: int, chunk: int, device: torch.device) -> None:
        for name, value in (("n", n), ("chunk", chunk)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self._encode = encode
        self._device = device
        self._chunks = [slice(begin, min(begin + chunk, n)) for begin in range(0, n, chunk)]
        self._states, parts = [], []
        with torch.no_grad():
            for rows in self._chunks:
                self._states.append(random_state(device))
                parts.append(encode(rows))
        whole = Encoded.concat(parts)
        vectors = {name: _leaf(vector) for name, vector in whole.vectors.items()}
        self.encoded = Encoded(_leaf(whole.sequences), whole.lengths, vectors)

    def backward(self) -> None:
        """Add the gradients of the encoder's parameters to those there are, after the loss has gone backward."""
        after = random_state(self._device)
        for rows, state in zip(self._chunks, self._states, strict=True):
            set_random_state(state, self._device)
            part = self._encode(rows)
            made = {"": part.sequences, **part.vectors}
            kept = {"": self.encoded.sequences, **self.encoded.vectors}
            pairs = [(made[name], kept[name].grad) for name in made if made[name].requires_grad]
            reached = [(tensor, grad[rows]) for tensor, grad in pairs if grad is not None]
            # A chunk is padded to its own longest item, and may be of a narrower dtype.
            gradients = [
                (grad if grad.shape == tensor.shape else grad[:, : tensor.shape[1]]).to(tensor.dtype)
                for tensor, grad in reached
            ]
            if reached:
                torch.autograd.backward([tensor for tensor, _ in reached], gradients)
        set_random_state(after, self._device)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())
