"""The native library's steps of stacked cross attention on a GPU (csrc/cross_attention/operations.h).

`part`, `of_contexts` and `of_queries` are `plan.Part.numbers`, `choices` what the call computes with.
"""

from __future__ import annotations

from crossret_kernels.operations import define

_PARTS = (
    "Tensor contexts, Tensor queries, Tensor of_contexts, Tensor of_queries, Tensor? context_jobs, Tensor? query_jobs"
)
_SIDE = "Tensor? extents, Tensor? places, Tensor? starts, Tensor part, Tensor choices"

# [rows of queries, of contexts, items of queries, of contexts] that jobs have at most, beside items of contexts of up
# to `longest` rows.
attention_job_sizes = define(
    "attention_job_sizes",
    (),
    "int packed, bool tfloat32, bool softmax, int longest, bool gradients, int most_shared",
    made="int[]",
)
# Of an item of contexts that can be attended to.
most_attended_rows = define("most_attended_rows", (), "bool gradients, int most_shared", made="int")
# Rows of a part, and behind them all that is told of them, of contexts their Gram matrices.
pack_side = define("pack_side_cuda", (), f"Tensor features, {_SIDE}, bool contexts", made="Tensor")
# Scores of all pairs of two packed parts, (contexts, queries), or of listed ones: (context, query) of each, and their
# places by contexts.
attend = define(
    "attend_cuda", (), f"Tensor(a!) scores, {_PARTS}, Tensor choices, Tensor? pairs, Tensor? order", made="()"
)
# ∂L/∂S (rows of queries, rows of contexts and padding), of each row of queries itself, of Gram matrices.
attention_gradients = define(
    "attention_gradients_cuda", (), f"Tensor grad_scores, {_PARTS}, Tensor choices", made="(Tensor, Tensor, Tensor)"
)
# Gradients of features from the sums of their packed rows, which Gram matrices' are added to.
finish_gradients = define(
    "finish_gradients_cuda",
    (),
    f"Tensor(a!) sums, Tensor packed, Tensor(b!) out, {_SIDE}, Tensor? own, Tensor? of_grams",
    made="()",
)
