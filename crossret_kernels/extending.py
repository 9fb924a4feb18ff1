"""Names for packages over the kernels besides the public functions: `crossret` imports from these two modules alone.

- Corpora read a block at a time: `Features`, `Lengths`, `FeatureBlock`, `FeatureBlocks`, `ItemBlocks`, `BLOCK_BYTES`,
  `is_packed`, `release_pages`; or some items of them, `Items`, `Chosen`, `bounded_runs`.
- The best of a corpus: `streamed_topk`, or its parts in several processes, `query_run_limit`, `corpus_run_limit`,
  `block_scores`, `topk_of_runs` and `merge_topk`; of candidates `candidate_topk`, `NONE`; `QUERIES`, `check_k`,
  `check_progress`.
- Losses of a matrix whose rows are spread over processes: `triplet_row_loss`, `infonce_row_loss`.
- PyTorch operations in bounded memory, with gradient 0 at 0: `WORKSPACE_BYTES`, `recomputed`, `safe_sqrt`,
  `vector_length`.
- Arguments checked as the public functions check theirs: `SideNames`, `as_tensor`, `as_integers`, `check_dense`,
  `check_floating`, `check_has_values`, `checkable`, `choose`.
- Which backend serves a call: `ENVIRONMENT_VARIABLE`, `serving`.

Each is described where it is defined. These names stay as the public ones do; all others beneath may change.
"""

from crossret_kernels.backends import ENVIRONMENT_VARIABLE, serving
from crossret_kernels.contrastive_loss.torch import infonce_row_loss
from crossret_kernels.inputs.blocks import (
    BLOCK_BYTES,
    Chosen,
    FeatureBlocks,
    ItemBlocks,
    Items,
    bounded_runs,
    release_pages,
)
from crossret_kernels.inputs.call import Features, Lengths
from crossret_kernels.inputs.options import choose
from crossret_kernels.inputs.pairs import QUERIES
from crossret_kernels.inputs.tensors import (
    SideNames,
    as_integers,
    as_tensor,
    check_dense,
    check_floating,
    check_has_values,
    checkable,
    is_packed,
)
from crossret_kernels.padded.arithmetic import safe_sqrt, vector_length
from crossret_kernels.padded.chunked import WORKSPACE_BYTES, recomputed
from crossret_kernels.ranking_loss.torch import triplet_row_loss
from crossret_kernels.topk.candidates import NONE, candidate_topk
from crossret_kernels.topk.streamed import (
    FeatureBlock,
    block_scores,
    check_k,
    check_progress,
    corpus_run_limit,
    merge_topk,
    query_run_limit,
    streamed_topk,
    topk_of_runs,
)

__all__ = [
    "BLOCK_BYTES",
    "ENVIRONMENT_VARIABLE",
    "NONE",
    "QUERIES",
    "WORKSPACE_BYTES",
    "Chosen",
    "FeatureBlock",
    "FeatureBlocks",
    "Features",
    "ItemBlocks",
    "Items",
    "Lengths",
    "SideNames",
    "as_integers",
    "as_tensor",
    "block_scores",
    "bounded_runs",
    "candidate_topk",
    "check_dense",
    "check_floating",
    "check_has_values",
    "check_k",
    "check_progress",
    "checkable",
    "choose",
    "corpus_run_limit",
    "infonce_row_loss",
    "is_packed",
    "merge_topk",
    "query_run_limit",
    "recomputed",
    "release_pages",
    "safe_sqrt",
    "serving",
    "streamed_topk",
    "topk_of_runs",
    "triplet_row_loss",
    "vector_length",
]
