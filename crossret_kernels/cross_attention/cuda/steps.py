"""The native library's steps of stacked cross attention on a GPU (csrc/cross_attention/operations.h)."""

from __future__ import annotations

from crossret_kernels.operations import define

# A side's part: features, or their gradients, starts and, of a mask, places; `plan.Part.numbers`.
_CONTEXTS, _QUERIES = (f"Tensor[] {side}, int[] of_{side}" for side in ("contexts", "queries"))
_SHARED = (
    "Tensor context_jobs, Tensor query_jobs, Tensor gram_starts, int n_fragments, int most_columns, int most_queries, "
    "int context_stride, int query_stride, bool tfloat32, float empty_score, bool normalize, int raw_feature_norm, "
    "float clip_slope, float lambda_softmax, int pooling, float lambda_lse"
)

# [rows of queries, of contexts] that jobs had best have, beside items of contexts of up to `longest`.
attention_job_rows = define(
    "attention_job_rows",
    (),
    "int packed, bool tfloat32, bool softmax, int longest, int most_queries, bool gradients, int most_shared",
    made="int[]",
)
# Scores of all pairs of two parts, or of listed ones: [(context, query) of each, their places by contexts].
attend = define("attend_cuda", (), f"Tensor(a!) scores, {_CONTEXTS}, {_QUERIES}, {_SHARED}, Tensor[] pairs", made="()")
# [rows, norms, powers, items] of a part; `wide` ones are float32.
pack_rows = define("pack_rows_cuda", (), "Tensor[] side, int[] of_side, bool normalize, bool wide", made="Tensor[]")
# [∂L/∂S (rows of queries, rows of contexts and padding), of each row of queries itself, of Gram matrices].
attention_gradients = define(
    "attention_gradients_cuda",
    (),
    f"Tensor grad_scores, Tensor[] contexts, int longest_context, Tensor[] queries, int longest_query, {_SHARED}, "
    "Tensor gram_numbers, int numbers",
    made="Tensor[]",
)
# Gradients of features from the sums of their packed rows, which Gram matrices' are added to.
finish_gradients = define(
    "finish_gradients_cuda",
    (),
    "Tensor(a!) sums, Tensor(b!)[] out, int[] of_out, Tensor[] packed, bool normalize, Tensor? own, Tensor? of_grams, "
    "Tensor? gram_numbers",
    made="()",
)
