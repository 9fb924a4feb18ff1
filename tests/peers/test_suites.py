"""What `make peers-suites` makes of two runs of a suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers import suites

RUN = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_kept" />
<testcase classname="tests.test_a" name="test_hub"><skipped message="" /></testcase>
<testcase classname="tests.test_a" name="test_other[1]">{other}</testcase>
<testcase classname="tests.test_a" name="test_broken"><failure message="" /><error message="" /></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("other", "row", "said"),
    [
        ("", None, "package: 2 of 2 tests pass that pass without crossret; others, without: 1 error, 1 skipped\n"),
        ("<failure/>", None, "tests.test_a::test_other[1]: passed without crossret, failed with it\n"),
        ("<failure/>", "tests.test_a::test_other[1]", "package: 1 of 2 tests pass"),
        ("", "tests.test_a::test_other[1]", "tests.test_a::test_other[1] is listed in list.md, but is the same"),
    ],
)
def test_differences(
    other: str, row: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    reports = [tmp_path / name for name in ("without.xml", "with.xml")]
    for report, own in zip(reports, ("", other), strict=True):
        report.write_text(RUN.format(other=own))
    monkeypatch.setattr(suites, "LISTED", tmp_path / "list.md")
    rows = [("another", "tests.test_a::test_kept"), *([("package", row)] if row else [])]
    suites.LISTED.write_text("\n".join(f"| {name} | `{test}` | why |" for name, test in rows))
    assert suites.main("package", *map(str, reports)) == int(bool(other) != bool(row))
    assert said in capsys.readouterr().out
