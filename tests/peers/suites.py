"""The packages' own test suites with crossret's functions in their place: a plugin of pytest's, and what differs.

`make peers-suites` runs a suite twice, as `pytest -p suites`, with and without `--in-place-of`, and then
`python -m tests.peers.suites NAME without.xml with.xml` on what both runs wrote.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.torchvision import let_torchvision_import
from crossret.compat import colpali, pylate, sentence_transformers

ADAPTERS: dict[str, ModuleType] = {
    "pylate": pylate, "sentence-transformers": sentence_transformers, "colpali-engine": colpali,
}  # fmt: skip
LISTED = Path(__file__).with_name("differences.md")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-place-of", choices=list(ADAPTERS), help="the package that crossret's functions stand in for")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any test or conftest imports a function."""
    let_torchvision_import()
    if package := early_config.known_args_namespace.in_place_of:
        ADAPTERS[package].patch()


def pytest_runtest_setup() -> None:
    """The same random numbers in both runs."""
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skips what wants a model or data of a hub, which is not asked, or a package that is not installed."""
    report = yield
    if report.failed and call.excinfo and any(map(_missing, _chain(call.excinfo.value))):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"not here: {call.excinfo.value}")
    return report


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _missing(error: BaseException) -> bool:
    offline = "OfflineModeIsEnabled" in f"{type(error).__name__} {error}"
    return offline or isinstance(error, ModuleNotFoundError) or "huggingface.co" in str(error)


def outcomes(report: Path) -> dict[str, str]:
    """By test: "passed", "skipped", "failed" or "error", as pytest's JUnit report has them."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag: child.tag for child in case}
        kind = next((kinds[tag] for tag in ("error", "failure", "skipped") if tag in kinds), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = kind.replace("failure", "failed")
    return found


def listed(package: str) -> set[str]:
    """The tests whose outcome differs on purpose."""
    rows = re.findall(r"^\| ([^|]+) \| `([^`]+)` \| [^|]+ \|$", LISTED.read_text(encoding="utf-8"), re.MULTILINE)
    return {test for name, test in rows if name == package}


def differences(package: str, without: dict[str, str], with_: dict[str, str]) -> list[str]:
    """What differs though it is not listed, and what is listed though it does not differ, a line each."""
    differing = {test for test in {*without, *with_} if without.get(test) != with_.get(test)}
    expected = listed(package)
    return [
        *(f"{test}: {without.get(test)} without crossret, {with_.get(test)} with it" for test in differing - expected),
        *(f"{test} is listed in {LISTED.name}, but is the same with and without" for test in expected - differing),
    ]


def main(package: str, *reports: str) -> int:
    without, with_ = (outcomes(Path(report)) for report in reports)
    passed = [test for test, outcome in without.items() if outcome == "passed"]
    kept = sum(with_.get(test) == "passed" for test in passed)
    others = Counter(outcome for outcome in without.values() if outcome != "passed")
    rest = ", ".join(f"{count} {outcome}" for outcome, count in sorted(others.items()))
    print(
        f"{package}: {kept} of {len(passed)} tests pass that pass without crossret; others, without: {rest or 'none'}"
    )
    wrong = sorted(differences(package, without, with_))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
