"""The CPU kernels' targets: ratios within one run, each beside its limit, in one table and three to four minutes.

    python -m benchmarks.targets [--threads N] [--quick] [--only GROUP ...] [--json FILE]

The sides of a ratio take turns, and the figure is the median of the turns' ratios. A floor is the best of short
moments, which other work leaves alone: what is divided by one needs an idle machine, the more so under `nice`. Some
limits depend on the processor: see the rows' notes. What the library has no arguments for yet is "absent".

Exit code 0 where all is met, 1 where something is missed or absent, 2 where it could not be measured.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks import cpu_seconds
from benchmarks.cases import INTERACTIVE_SEARCH, LATE_INTERACTION, SETTINGS, TRAINING_BATCH, Case, Inputs
from benchmarks.floor import Floor
from benchmarks.turns import Side, Turns, take_turns, timed
from benchmarks.waiting import busy_processes
from crossret.files.json import write_json
from crossret.machine import describe_machine
from crossret_kernels import maxsim_scores, scan_scores
from crossret_kernels.backends import NATIVE_MISSING

OURS, PRODUCT, FLOOR = "ours", "torch.mm", "floor"
AT_PEAK = 0.85  # rate of torch.mm, by that of multiply-adds in registers, from which it is called as fast as these
DOTS_PAY = 1.5  # times float32's: the rate from which dot products of bfloat16 are worth their while
RAW_FEATURE_NORMS = ("softmax", "l2norm", "clipped_l2norm", "l1norm", "clipped_l1norm", "clipped", "no_norm")
MASKS = {"region_mask", "word_mask"}
HOLES = 0.2
MANY = 100  # items: a side of so many is cut to a quarter by --quick
WIDTH = 150  # characters of a table that goes to no terminal


@dataclass(frozen=True)
class Row:
    """A figure, None where the library lacks what it needs, and its limit, None where it has none of its own."""

    case: str
    figure: float | None
    limit: float | None = None
    at_least: bool = False  # whether the limit is the least, not the most
    unit: str = "×"
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "absent"
        if self.limit is None:
            return "–"
        figure = round(self.figure, 2)
        return "met" if (figure >= self.limit if self.at_least else figure <= self.limit) else "missed"


@dataclass(frozen=True)
class Run:
    """Conditions of all measurements of a run."""

    floor: Floor
    threads: int
    quick: bool

    def size(self, case: Case) -> Case:
        """The case itself, or with --quick a quarter of its many images and of its many captions."""
        if not self.quick:
            return case
        images, captions = (n // 4 if n >= MANY else n for n in (case.n_images, case.n_captions))
        return replace(case, n_images=images, n_captions=captions)

    def turns(self, **sides: Side) -> Turns:
        if self.quick:
            return take_turns(sides, 0.1, 3, 9)
        return take_turns(sides, 1.5, 5, 25)

    def rate(self, dtype: torch.dtype = torch.float32) -> float:
        return self.floor.flop_per_second(dtype, self.threads)

    def bound(self, inputs: Inputs) -> Side:
        """Seconds of the similarity product's multiply-adds in registers, measured anew in every turn."""
        return lambda: inputs.flop / self.rate()


Call = Callable[[], Tensor]


def scan(inputs: Inputs, setting: str, **options: Any) -> Call:
    """Padded; images have all their regions."""
    chosen = {"word_lengths": inputs.word_lengths, "backend": "cpu", **SETTINGS[setting], **options}
    return partial(scan_scores, inputs.regions, inputs.words, **chosen)


def sum_max(inputs: Inputs) -> Call:
    """Batch of packed documents and padded queries of one length."""
    return partial(maxsim_scores, inputs.packed_regions(), inputs.words, backend="cpu")


def beside_the_product(run: Run) -> Iterator[Row]:
    """The float32 scores of a training batch."""
    case = run.size(TRAINING_BATCH)
    inputs = case.inputs()
    regions, words = inputs.packed_regions()[0], inputs.packed_words()[0]
    for setting in SETTINGS:
        turns = run.turns(
            **{
                OURS: timed(scan(inputs, setting)),
                PRODUCT: timed(lambda: torch.mm(regions, words.T)),
                FLOOR: run.bound(inputs),
            }
        )
        rate = 1 / turns.ratio(PRODUCT, FLOOR)
        at_peak = rate >= AT_PEAK
        name = f"{setting} {case.n_images} × {case.n_captions}"
        reached = f"{PRODUCT} at {rate:.0%} of the floor's rate"
        yield Row(f"{name} / {PRODUCT}", turns.ratio(OURS, PRODUCT), 1.1 if at_peak else None, note=str(turns))
        yield Row(f"{name} / FMA floor", turns.ratio(OURS, FLOOR), None if at_peak else 1.25, note=reached)


def in_bfloat16(run: Run) -> Iterator[Row]:
    """float32's time divided by bfloat16's."""
    flags = Path("/proc/cpuinfo")
    if flags.exists() and "amx_bf16" in flags.read_text(encoding="utf-8"):
        scan_limit, maxsim_limit, why = 2.5, 3.0, "with AMX"
    elif run.rate(torch.bfloat16) >= DOTS_PAY * run.rate():
        scan_limit, maxsim_limit, why = 1.7, 1.7, "with dot products"
    else:
        scan_limit, maxsim_limit, why = 1.0, 1.0, "without either"

    def row(name: str, limit: float, case: Case, call: Callable[[Inputs], Call]) -> Row:
        inputs = case.inputs()
        turns = run.turns(float32=timed(call(inputs)), bfloat16=timed(call(inputs.to(torch.bfloat16))))
        name = f"{name}, float32 / bfloat16"
        return Row(name, turns.ratio("float32", "bfloat16"), limit, at_least=True, note=f"{turns}; {why}")

    batch, documents = run.size(TRAINING_BATCH), run.size(LATE_INTERACTION)
    for setting in SETTINGS:
        name = f"{setting} {batch.n_images} × {batch.n_captions}"
        yield row(name, scan_limit, batch, partial(scan, setting=setting))
    yield row(f"Sum-Max 1 × {documents.n_images:,} documents", maxsim_limit, documents, sum_max)


def work_of_threads(run: Run) -> Iterator[Row]:
    """CPU seconds of a call on more threads, divided by those on one; OMP_WAIT_POLICY=PASSIVE."""
    with cpu_seconds.processes() as processes:
        one, *more = processes
        for name, full_size in cpu_seconds.CALLS.items():
            case = run.size(full_size)
            turns = run.turns(**{f"on {count}": side(name, case) for count, side in processes.items()})
            for count in more:
                row = f"{name} {case.n_images:,} × {case.n_captions}, {count} threads / {one}"
                note = str(turns) if count == more[0] else ""
                yield Row(row, turns.ratio(f"on {count}", f"on {one}"), 1.15, note=note)


def few_against_many(run: Run) -> Iterator[Row]:
    """A few items against so many that reading them may take longest."""
    few = run.size(Case(500, 8))
    many = run.size(Case(500, 128))
    for setting in SETTINGS:
        inputs = many.inputs()
        first = inputs.first(few.n_images, few.n_captions)
        turns = run.turns(few=timed(scan(first, setting)), many=timed(scan(inputs, setting)))
        more = inputs.flop / first.flop  # captions differ in length
        note = f"{turns}; per pair, of the same number of words"
        name = f"{setting} {few.n_images} × {few.n_captions} / {many.n_images} × {many.n_captions}"
        yield Row(name, more * turns.ratio("few", "many"), note=note)
    query = replace(INTERACTIVE_SEARCH, words=(13, 13))
    for case, setting in product((query, replace(query, regions=(100, 100)), Case(1, 1000)), SETTINGS):
        case = run.size(case)
        inputs = case.inputs()
        side = inputs.packed_regions()[0] if case.n_images > 1 else inputs.packed_words()[0]
        reading = timed(side.sum)
        turns = run.turns(**{OURS: timed(scan(inputs, setting)), "reading": reading, FLOOR: run.bound(inputs)})
        bounds = {"reading": 1.5, FLOOR: 1.25}
        larger = max(bounds, key=lambda name: bounds[name] * turns.median(name))
        name = f"{setting} {case.n_images:,} × {case.n_captions:,}, {case.regions[0]} regions / {larger}"
        yield Row(name, turns.ratio(OURS, larger), bounds[larger], note=str(turns))


def layouts(run: Run) -> Iterator[Row]:
    """Lists and masks with holes, divided by the same rows packed."""
    batch, documents = run.size(TRAINING_BATCH), run.size(LATE_INTERACTION)
    batch_inputs, document_inputs = batch.inputs(), documents.inputs()
    scans = f"{batch.n_images} × {batch.n_captions}"
    scored = f"Sum-Max 1 × {documents.n_images:,} documents"

    def items(packed: tuple[Tensor, Tensor]) -> list[Tensor]:
        return list(packed[0].split(packed[1].diff().tolist()))

    def compare(case: str, other: str, call: Call, packed: Call) -> Row:
        torch.testing.assert_close(call(), packed(), rtol=0, atol=1e-4, msg=lambda found: f"{case}: {found}")
        turns = run.turns(**{other: timed(call), "packed": timed(packed)})
        return Row(f"{case}, {other} / packed", turns.ratio(other, "packed"), 1.15, note=str(turns))

    regions, words = batch_inputs.packed_regions(), batch_inputs.packed_words()
    for setting, options in SETTINGS.items():
        score = partial(scan_scores, backend="cpu", **options)
        listed = partial(score, items(regions), items(words))
        yield compare(f"{setting} {scans}", "lists", listed, partial(score, regions, words))
    score = partial(maxsim_scores, backend="cpu")
    rows, queries = document_inputs.packed_regions(), document_inputs.words
    yield compare(scored, "a list", partial(score, items(rows), queries), partial(score, rows, queries))

    generator = torch.Generator().manual_seed(0)
    region_mask = _holes(batch_inputs.regions, batch_inputs.region_lengths, generator)
    word_mask = _holes(batch_inputs.words, batch_inputs.word_lengths, generator)
    regions, words = _pack(batch_inputs.regions, region_mask), _pack(batch_inputs.words, word_mask)
    for setting, options in SETTINGS.items():
        if not inspect.signature(scan_scores).parameters.keys() >= MASKS:
            yield Row(f"{setting} {scans}, masks / packed", None, 1.15, note=f"scan_scores takes no {_names(MASKS)}")
            continue
        score = partial(scan_scores, backend="cpu", **options)
        masks: dict[str, Any] = {"region_mask": region_mask, "word_mask": word_mask}
        masked = partial(score, batch_inputs.regions, batch_inputs.words, **masks)
        yield compare(f"{setting} {scans}", "masks", masked, partial(score, regions, words))
    if not inspect.signature(maxsim_scores).parameters.keys() >= MASKS:
        yield Row(f"{scored}, a mask / packed", None, 1.15, note=f"maxsim_scores takes no {_names(MASKS)}")
        return
    mask = _holes(document_inputs.regions, document_inputs.region_lengths, generator)
    score = partial(maxsim_scores, backend="cpu")
    only: dict[str, Any] = {"region_mask": mask}
    masked = partial(score, document_inputs.regions, queries, **only)
    yield compare(scored, "a mask", masked, partial(score, _pack(document_inputs.regions, mask), queries))


def _holes(values: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """(n, L): which rows of items are left when a fifth of the valid ones goes; every item keeps its first."""
    kept = torch.rand(values.shape[:2], generator=generator) >= HOLES
    kept[:, 0] = True
    return kept & (torch.arange(values.size(1)) < lengths[:, None])


def _pack(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return values[mask], F.pad(mask.sum(1).cumsum(0), (1, 0))


def _names(arguments: set[str]) -> str:
    return " and ".join(sorted(arguments))


def item_centred(run: Run) -> Iterator[Row]:
    """Features minus their item's mean, whose sums cancel, divided by ordinary ones."""
    case = Case(16, 16) if run.quick else Case(64, 64)
    ordinary = case.inputs()
    centred = ordinary.minus_item_means()
    for setting, norm in product(SETTINGS, RAW_FEATURE_NORMS):
        calls = {"centred": centred, "ordinary": ordinary}
        turns = run.turns(
            **{name: timed(scan(inputs, setting, raw_feature_norm=norm)) for name, inputs in calls.items()}
        )
        name = f"{setting} {case.n_images} × {case.n_captions}, {norm}"
        yield Row(name, turns.ratio("centred", "ordinary"), 1.5, note=str(turns))


def almost_nothing(run: Run) -> Iterator[Row]:
    """Microseconds of a call of 2 × 2 small items, the backend chosen by the call as users leave it."""
    inputs = Case(2, 2, dim=64, regions=(4, 4), words=(4, 4)).inputs()
    packed = inputs.packed_regions(), inputs.packed_words()
    padded = inputs.regions, inputs.words
    sizes = {"padded": (padded, 15.0), "packed": (packed, 20.0)}
    most, seconds = (100, 0.2) if run.quick else (2000, 3.0)
    functions: dict[str, Callable[..., Any]] = {"scan": scan_scores, "Sum-Max": maxsim_scores}
    for load, busy in (("alone", 0), ("beside a busy process", 1)):
        with busy_processes(busy):
            time.sleep(0.2 * busy)  # until it has started
            for operation, function in functions.items():
                sides = {layout: timed(partial(function, *features)) for layout, (features, _) in sizes.items()}
                for _ in range(20):
                    for side in sides.values():
                        side()
                turns = take_turns(sides, seconds, most // 10, most)
                for layout, (_, limit) in sizes.items():
                    found = turns.seconds[layout]
                    note = f"90th percentile {statistics.quantiles(found, n=10)[-1] * 1e6:,.1f} µs"
                    name = f"{operation} 2 × 2, {layout}, {load}"
                    yield Row(name, statistics.median(found) * 1e6, limit, unit="µs", note=note)


GROUPS: dict[str, Callable[[Run], Iterator[Row]]] = {
    "product": beside_the_product,
    "bfloat16": in_bfloat16,
    "threads": work_of_threads,
    "few": few_against_many,
    "layouts": layouts,
    "centred": item_centred,
    "nothing": almost_nothing,
}


def measure(run: Run, groups: list[str]) -> dict[str, list[Row]]:
    """The rows of the groups by their names."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        shown = track(groups, "measuring", console=Console(stderr=True), transient=True)
        return {group: list(GROUPS[group](run)) for group in shown}
    finally:
        torch.set_num_threads(before)


def table(found: dict[str, list[Row]]) -> Table:
    """Every row a line, groups apart."""
    lines = Table("case", "figure", "target", "", "medians, notes")
    lines.columns[1].justify = lines.columns[2].justify = "right"
    for group, rows in found.items():
        lines.add_section()
        lines.add_row(f"[bold]{group}:[/] {inspect.getdoc(GROUPS[group])}")
        for row in rows:
            figure = "–" if row.figure is None else f"{row.figure:,.{1 if row.unit == 'µs' else 2}f} {row.unit}"
            sign = "≥" if row.at_least else "≤"
            limit = "–" if row.limit is None else f"{sign} {row.limit:g} {row.unit}"
            style = {"met": "green", "missed": "red"}.get(row.verdict, "dim")
            lines.add_row(row.case, figure, limit, f"[{style}]{row.verdict}[/]", row.note)
    return lines


def describe(machine: dict[str, Any]) -> str:
    quick = ", --quick: figures of no weight" if machine["quick"] else ""
    return (
        f"{machine['cpu']} ({machine['isa']}), {machine['cores']} cores, {machine['threads']} threads, "
        f"torch {machine['torch']}, {machine['date']}{quick}"
    )


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of torch, but for CPU seconds (default: 2)")
    parser.add_argument("--quick", action="store_true", help="smaller batches, few turns: whether it runs")
    parser.add_argument("--only", nargs="+", choices=GROUPS, metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures there too")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints; gives the exit code."""
    parser = command_line()
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, not {options.threads}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no directory {options.json.parent}")
    if NATIVE_MISSING is not None:
        parser.error(f"the native library is not there: {NATIVE_MISSING}")
    try:
        with tempfile.TemporaryDirectory() as directory:
            run = Run(Floor(Path(directory)), options.threads, options.quick)
            found = measure(run, [group for group in GROUPS if group in (options.only or GROUPS)])
        machine = describe_machine() | {
            "threads": options.threads,
            "isa": torch.ops.crossret.selected_cpu_isa(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "quick": options.quick,
        }
        print(describe(machine))
        Console(width=None if sys.stdout.isatty() else WIDTH).print(table(found))
        if options.json is not None:
            rows = [
                {"group": group, **asdict(row), "verdict": row.verdict} for group, rows in found.items() for row in rows
            ]
            write_json(options.json, {"machine": machine, "rows": rows})
    except (OSError, ValueError, RuntimeError, AssertionError, subprocess.CalledProcessError) as error:
        print(f"targets: {error}", file=sys.stderr)
        return 2
    verdicts = [row.verdict for rows in found.values() for row in rows]
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("met", "missed", "absent")))
    return int("missed" in verdicts or "absent" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
