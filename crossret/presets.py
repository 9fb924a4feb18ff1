"""The papers' settings by name: attention and schedule. Imports nothing, so that --help can list them at once."""

from __future__ import annotations

from typing import Any

_T2I_LSE = {"cross_attention": "t2i", "lambda_softmax": 9.0, "pooling": "lse", "lambda_lse": 6.0}
_T2I_AVG = {"cross_attention": "t2i", "lambda_softmax": 9.0, "pooling": "avg"}
_I2T_AVG = {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "avg"}
_PLUS_I2T_AVG = {"cross_attention": "ensemble", "i2t_lambda_softmax": 4.0, "i2t_pooling": "avg"}
_PLUS_I2T_LSE = {"cross_attention": "ensemble", "i2t_lambda_softmax": 4.0, "i2t_pooling": "lse"}

# Of Table 1's and Table 2's ensembles these are the settings. One model is trained for both directions, over shared
# encoders; the paper trains two models apart and averages their score matrices (Section 4.2).
SCAN_PRESETS: dict[str, dict[str, Any]] = {
    # Table 1
    "f30k_t2i_lse": _T2I_LSE,
    "f30k_t2i_avg": _T2I_AVG,
    "f30k_i2t_lse": {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "lse", "lambda_lse": 5.0},
    "f30k_i2t_avg": _I2T_AVG,
    "f30k_t2i_avg_i2t_lse": {**_T2I_AVG, **_PLUS_I2T_LSE, "i2t_lambda_lse": 5.0},
    # Table 2
    "coco_t2i_lse": _T2I_LSE,
    "coco_t2i_avg": _T2I_AVG,
    "coco_i2t_lse": {"cross_attention": "i2t", "lambda_softmax": 4.0, "pooling": "lse", "lambda_lse": 20.0},
    "coco_i2t_avg": _I2T_AVG,
    "coco_t2i_lse_i2t_avg": {**_T2I_LSE, **_PLUS_I2T_AVG},
    "coco_t2i_avg_i2t_lse": {**_T2I_AVG, **_PLUS_I2T_LSE, "i2t_lambda_lse": 20.0},
    # Table 3
    "f30k_sum_max_t2i": {"cross_attention": "sum_max_t2i"},
    "f30k_sum_max_i2t": {"cross_attention": "sum_max_i2t"},
}

# Where only the direction is chosen.
PRESET_OF_CROSS_ATTENTION = {
    "t2i": "f30k_t2i_avg",
    "i2t": "f30k_i2t_avg",
    "ensemble": "f30k_t2i_avg_i2t_lse",
    "sum_max_t2i": "f30k_sum_max_t2i",
    "sum_max_i2t": "f30k_sum_max_i2t",
}

# By the data set that a preset's name begins with (SCAN, Appendix A).
SCHEDULES: dict[str, dict[str, Any]] = {
    "f30k": {"epochs": 30, "decay_epoch": 15, "learning_rate": 2e-4},
    "coco": {"epochs": 20, "decay_epoch": 10, "learning_rate": 5e-4},
}
