"""No kernel in Triton multiplies in 32 bits what may not fit: numbers of rows by their width above all."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

pytest.importorskip("triton")

from crossret_kernels.backends import INTERPRETED
from tests.kernels.gpu.addresses import first_code_of, products_beyond_32_bits
from tests.kernels.gpu.compile_cases import COVERING
from tests.kernels.gpu.offline import launches_of

pytestmark = pytest.mark.skipif(INTERPRETED, reason="with TRITON_INTERPRET set nothing is compiled")

# Lines whose products fit, and why.
FITTING = {
    "rows and items of a side: a call with more than int32 counts is refused": (
        "blocks = tl.cdiv(n_own * rows, KIND.ROWS)",
        "begin += tl.program_id(2) * length",
        "item = tile * decoded(sizes.tile_items) + owner",
        "place = (row - item * decoded(sizes.slots)).to(tl.int64)",
        "place = slot - owner * most",
        "rows = block * ROWS + tl.arange(0, ROWS)",
        "scores, by, 0.0, image_ids, caption_ids, block * ROWS, column, n_rows, n_columns, stride, offset,",
        "scores, image_ids, caption_ids, block * ROWS, column, n_rows, n_columns, stride, offset, margin,",
        "from_table = tl.load(tables.owners + tile * M + slot, mask=planned, other=-1)",
    ),
    "rows and items of a part, of whose workspace `chunks.MOST_NUMBERS` fit": (
        "begin = item * decoded(run.sizes.pieces) if KIND.LISTED else 0",
        "begin = tl.program_id(1) * decoded(run.sizes.contexts_per_program)",
        "empty = tl.load(run.contexts.items + 4 * item + 1, mask=inside, other=1) == 0",
        "first = number * slots",
        "first_item = number // decoded(run.sizes.pieces) * tile_items",
        "items = run.queries.items + 4 * (first_item + g)",
        "n_rows = tl.minimum(n_items * slots - piece, N)",
        "piece = number % decoded(run.sizes.pieces) * N",
        "return tl.load(side.items + 4 * item), tl.load(side.items + 4 * item + 1)",
        "row = first_item * slots + piece",
        "rows = r + item * decoded(run.sizes.context_slots) if KIND.LISTED else r",
        "tile = first + 2 * number",
        "tl.store(run.contexts.items + 4 * item + 2, broken * NOT_FINITE + may_cancel.to(tl.int32) * MAY_CANCEL)",
    ),
    "numbers of such a workspace": (
        "at = norm_sums + context_rows * norm_sums_pitch",
        "cells = (row + j) * (decoded(run.sizes.pitch) * 16) + column + c",
        "cells = run.S + q[:, None] * (decoded(run.sizes.pitch) * 16) + (tl.multiple_of(first, 4) + c)[None, :]",
        "s = tl.load(run.S + rows * (decoded(run.sizes.pitch) * 16) + columns)",
        "tl.store(norm_sums + context_rows * norm_sums_pitch + piece, norm_sum, mask=c < slots)",
    ),
    "rows of an item, or cells of two": (
        "at = c[:, None] * queries + q[None, :]",
        "other_w = tl.load(weights + o[None, :] * queries + q[:, None], mask=inside, other=0.0)",
        "tl.store(grams + c[:, None] * contexts + o[None, :], made, mask=inside)",
        "w = tl.load(weights + c[:, None] * queries + q[None, :], mask=inside, other=0.0)",
        "x = tl.load(products + c[:, None] * width + q[None, :], mask=inside, other=0.0)",
        "best, depths = better(best, depths, s, step * (N // COLUMNS) + which, KIND.INDEX)",
        "first_places = slot // COLUMNS * width + (slot % COLUMNS >> decoded(sizes.bits))",
        "depths = depths * width + (tl.arange(0, COLUMNS) >> decoded(sizes.bits))[None, :]",
        "return grams + (int64(item) * pitch + row) * pitch + column + (c[:, None] * pitch + c[None, :])",
        "slots = tl.maximum((context[1] + TOGETHER - 1) // TOGETHER * TOGETHER, decoded(run.sizes.context_slots))",
        "n_rows = count if KIND.QUERIES else (count + TOGETHER - 1) // TOGETHER * TOGETHER",
        "within = tl.minimum(first_places + step * (N >> decoded(sizes.bits)), lasts).to(tl.int64)",
    ),
    "programs of a grid, and their steps": (
        "other = (tl.program_id(0) // (KIND.HEADS * blocks)).to(tl.int64)",
        "begin = program // decoded(sizes.n_tiles) * decoded(sizes.run_groups)",
        "begin = run * decoded(sizes.run_groups)",
        "first = tl.program_id(0) * per_program",
        "row = block * KIND.ROWS + tl.arange(0, KIND.ROWS)",
    ),
    "rows, columns, heads or items of a tile, in a grid that covers a side": (
        "block = tl.program_id(1) * POOLED_CONTEXTS",
        "column = tl.program_id(0) % across * COLUMNS",
        "column = tl.program_id(1) % decoded(run.sizes.gram_blocks) * C",
        "column = tl.program_id(1) * KIND.WIDTH + tl.arange(0, KIND.WIDTH)",
        "column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)",
        "d = tl.program_id(0) % steps * K",
        "left = tl.program_id(1) // decoded(run.sizes.gram_blocks) * C",
        "place = tl.program_id(1) * KIND.ROWS + tl.arange(0, KIND.ROWS)",
        "positives = block * POSITIVES + tl.arange(0, POSITIVES)",
        "r = tl.program_id(1) * C + tl.arange(0, C)",
        "r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)",
        "right = tl.program_id(1) % decoded(run.sizes.gram_blocks) * C",
        "row = tl.program_id(0) * ROWS",
        "row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)",
        "row = tl.program_id(0) // across * ROWS",
        "row = tl.program_id(1) // decoded(run.sizes.gram_blocks) * C",
        "rows = tl.program_id(0) * POSITIVES + tl.arange(0, POSITIVES)",
        "start = number % decoded(sizes.blocks) * KIND.ROWS",
    ),
    "a width, from its steps or blocks": (
        "pitch = decoded(run.sizes.gram_blocks) * C",
    ),
    "planes of a workspace whose numbers all fit, or of a side's rows": (
        "along = tl.load(coefficients + 2 * queries + q, mask=q < n_q, other=0.0)[None, :]",
        "tl.store(coefficients + 2 * queries + q, along, mask=q < n_q)",
        "column_keys = tl.load(statistics + 2 * n_rows + at, mask=matched, other=-1.0)",
        "first = run.tiles + 2 * decoded(run.sizes.first_tile)",
        "least = tl.load(places + LEAST * decoded(run.sizes.kept_plane))",
        "lowest = tl.load(places + LOWEST * decoded(run.sizes.kept_plane))",
        "moves = tl.load(cells + start + OF_SQUARES * plane, mask=mask, other=0.0) != 0",
        "n_pairs = tl.load(at + 5 * stride, mask=mask, other=0.0) if SMOOTHED else m * 0.0",
        "n_positives = tl.load(at + 3 * stride, mask=mask, other=0.0)",
        "pairs = tl.load(at + 3 * stride, mask=mask, other=0.0)",
        "pairs = tl.load(at + 4 * stride, mask=mask, other=0.0) if SMOOTHED else m * 0.0",
        "pitch = decoded(run.sizes.pitch) * 16",
        "places = run.kept + plane * decoded(run.sizes.kept_plane) + int64(item) * decoded(run.sizes.kept_pitch) "
        "+ row + j",
        "positives = tl.load(at + 2 * stride, mask=mask, other=0.0)",
        "return tl.load(at, mask=mask, other=0.0), b, tl.load(at + 2 * stride, mask=mask, other=0.0)",
        "shift = tl.load(places + SHIFT * decoded(run.sizes.kept_plane))",
        "tl.store(at + 2 * stride, c, mask=mask)",
        "tl.store(at + number * stride, statistics[number], mask=mask)",
        "tl.store(cells + start + OF_RELEVANCES * plane, relevance_grads, mask=mask)",
        "tl.store(packed.items + 4 * number, first)",
        "tl.store(places + OF_SQUARES * decoded(run.sizes.kept_plane), square_factors, mask=here)",
        "tl.store(places + LEAST * decoded(run.sizes.kept_plane), limits[1], mask=here)",
        "tl.store(places + LOWEST * decoded(run.sizes.kept_plane), limits[2], mask=here)",
        "tl.store(places + SHIFT * decoded(run.sizes.kept_plane), limits[0], mask=here)",
        "tl.store(statistics + 2 * n_rows + positives, column_key, mask=inside)",
        "tl.store(statistics + 3 * n_rows + positives, column_total, mask=inside)",
        "tl.store(to + 2 * stride, target, mask=mask)",
        "tl.store(to + 3 * stride, pair_target, mask=mask)",
        "totals += tl.load(statistics + 3 * n_rows + rows, mask=in_rows, other=0.0)",
    ),
    "groups of contexts, of a power of two each, and bands of tiles": (
        "group_size = 1 << decoded(sizes.bits)",
        "band = program // (GROUP * n_columns)",
        "first = band * GROUP",
        "item = group_items(tables, group, slot & ((1 << decoded(sizes.bits)) - 1), sizes)",
        "number = (group << decoded(sizes.bits)) + place",
        "tables.groups + (decoded(sizes.first_group) << decoded(sizes.bits)) + number, mask=planned, other=-1",
    ),
    "0 or 1 times rows of an item": (
        "before = tl.load(rows, mask=start + j < count * later, other=0.0)",
    ),
}  # fmt: skip


def test_products_fit_32_bits(tmp_path: Path) -> None:
    launches = {launch.key: launch for case in COVERING for launch in launches_of(case.call)}
    found: dict[str, str] = {}
    for launch in launches.values():
        found |= dict.fromkeys(products_beyond_32_bits(first_code_of(launch, tmp_path)), launch.name)
    known = set(chain.from_iterable(FITTING.values()))
    assert {line: name for line, name in found.items() if line not in known} == {}
    assert known <= found.keys()
