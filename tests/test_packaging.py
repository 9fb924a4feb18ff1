"""What is shipped: one abi3 wheel with our flags and torch's stable ABI alone; a build that cannot start says why."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import crossret_kernels
from crossret import __main__ as command

ROOT = Path(__file__).parents[1]
LIBRARY = "_native.abi3.so"
CUDA_LIBRARY = "_native_cuda.abi3.so"

# Stands for a C++ compiler: notes its arguments and makes the file it was asked for.
RECORDING_COMPILER = """#!/bin/sh
echo "$@" >> "$RECORD"
while [ $# -gt 0 ]; do
    case "$1" in
        -o) : > "$2" ;;
        -MF) echo "object:" > "$2" ;;
    esac
    shift
done
"""


# Stands for nvcc of CUDA 13.0, which knows few GPUs.
RECORDING_NVCC = """#!/bin/sh
case "$1" in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
    --list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_90\\ncompute_100\\n'; exit ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of all that a build reads, in a directory whose name has a space."""
    copy = tmp_path / "a copy"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "setup_cuda.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    for name in ("csrc", "crossret", "crossret_kernels", "tests/native"):
        ignored = shutil.ignore_patterns("*.so", "_native*.txt", "__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


def run_python(directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory; its environment is PATH and what is given."""
    own = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run([sys.executable, *words], cwd=directory, env=own, capture_output=True, text=True, check=False)


def run_setup(project: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(project, "setup.py", "--quiet", *words, **environment)


def executable(path: Path, text: str) -> Path:
    """A program of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)
    return path


def toolkit(directory: Path) -> str:
    """The folder of a toolkit, whose nvcc notes its arguments."""
    executable(directory / "bin" / "nvcc", RECORDING_NVCC + RECORDING_COMPILER.partition("\n")[2])
    return str(directory)


def torch_with_cuda(directory: Path, version: str) -> str:
    """A folder for PYTHONPATH, where this torch is built with CUDA; of the rest there is nothing."""
    (directory / "torch").mkdir(parents=True)
    (directory / "torch" / "__init__.py").touch()
    line = f"cuda: Optional[str] = '{version}'\n"
    (directory / "torch" / "version.py").write_text(f"debug = False\n{line}", encoding="ascii")
    known = directory / "torch-2.13.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n", encoding="ascii")
    return str(directory)


def build_wheel(project: Path, **environment: str) -> tuple[Path, list[str]]:
    """Build a wheel with the recording compiler; the wheel and the compiler's calls, in an order of their own."""
    record = project.parent / "calls"
    record.unlink(missing_ok=True)
    compiler = executable(project.parent / "recording compiler", RECORDING_COMPILER)
    shutil.rmtree(project / "build", ignore_errors=True)
    done = run_setup(project, "bdist_wheel", CXX=f"'{compiler}'", RECORD=str(record), **environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel, sorted(record.read_text(encoding="utf-8").splitlines())


def test_wheel_serves_every_later_python_and_holds_both_packages(project: Path) -> None:
    wheel, calls = build_wheel(project)
    assert re.fullmatch(rf"crossret-{metadata.version('crossret')}-cp310-abi3-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        f"crossret_kernels/{LIBRARY}",
        "crossret_kernels/py.typed",
        "crossret/py.typed",
        "crossret/cli/__init__.py",
        *(f"crossret/explain/page/{name}" for name in ("page.html", "page.css", "page.js", "panels.js")),
    } <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"crossret", "crossret_kernels"}
    # Flags of the machine that builds reach no compiler, and what tests alone need is left out.
    of_cuda = {*(project / "csrc" / "cuda").glob("*.cpp"), *(project / "csrc").rglob("cuda_*.cpp")}
    assert len(calls) == len(list((project / "csrc").rglob("*.cpp"))) - len(of_cuda) + 1
    assert not [call for call in calls if re.search(r"-march|-mtune|-mcpu|-ffast-math|-Ofast|emulated", call.lower())]
    needed = {"-O3", "-ffp-contract=off", "-DTORCH_TARGET_VERSION=0x020a000000000000"}
    assert all(needed <= set(call.split()) for call in calls if " -c " in call)
    hostile = dict.fromkeys(("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "OPT"), "-march=native -ffast-math")
    _, under_hostile_environment = build_wheel(project, **hostile, CROSSRET_EMULATED_AMX="1")
    emulated = {call for call in under_hostile_environment if "tests/native/amx_emulated" in call and " -c " in call}
    assert emulated and not [call for call in under_hostile_environment if re.search("-march|-ffast-math", call)]


def test_source_distribution_holds_what_builds_and_the_pictures_of_the_readme(project: Path) -> None:
    pictures = set(re.findall(r"!\[[^]]*\]\((?!https?:)([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert pictures
    for folder in {str(Path(picture).parent) for picture in pictures}:
        shutil.copytree(ROOT / folder, project / folder)
    done = run_setup(project, "sdist")
    assert done.returncode == 0, done.stderr
    (archive,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
    assert pictures <= names
    assert {"setup_cuda.py", "csrc/cuda/launch.cuh", "csrc/cuda/stream.cu", "csrc/cross_attention/gpu.h"} <= names


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"PATH": "", "CROSSRET_FORCE_NATIVE": "1"},
            "(CROSSRET_FORCE_NATIVE): it needs a C++17 compiler, and none was",
        ),
        ({"CXX": "c++ -march=native"}, "CXX='c++ -march=native' holds flags"),
    ],
)
def test_a_build_that_cannot_start_says_so_in_one_line(
    project: Path, environment: dict[str, str], sentence: str
) -> None:
    done = run_setup(project, "build_ext", **environment)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("named", "architectures"),  # of which PTX is made once
    [
        (
            "",
            ["80,code=sm_80", "80,code=compute_80", "90a,code=sm_90a", "100,code=sm_100", "100,code=compute_100"],
        ),
        ("7.5;8.0 9.0a+PTX", ["80,code=sm_80", "90a,code=sm_90a", "90a,code=compute_90a"]),
        ("8.0 9.0+PTX", ["80,code=sm_80", "90a,code=sm_90a", "90,code=compute_90"]),
    ],
    ids=["all", "named", "as PTX"],
)
def test_a_torch_with_cuda_gets_a_library_for_gpus(
    project: Path, tmp_path: Path, named: str, architectures: list[str]
) -> None:
    """A wheel with it, built for the GPUs that are named as torch's extensions name them."""
    environment = {"TORCH_CUDA_ARCH_LIST": named} if named else {}
    environment |= {"NVCC_APPEND_FLAGS": "-use_fast_math", "NVCC_PREPEND_FLAGS": "-lineinfo"}
    torch, home = torch_with_cuda(tmp_path / "packages", "13.2"), toolkit(tmp_path / "the toolkit")
    wheel, calls = build_wheel(project, PYTHONPATH=torch, CUDA_HOME=home, **environment)
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert {LIBRARY, CUDA_LIBRARY} <= names and "_native_cuda_missing.txt" not in names
    of_nvcc = [call.split() for call in calls if "-ccbin=" in call]
    assert not {"-use_fast_math", "-lineinfo"} & {word for call in of_nvcc for word in call}
    compiles = [call for call in of_nvcc if "-c" in call]
    assert len(compiles) == len(list((project / "csrc").rglob("*.cu")))
    for call in compiles:
        generated = [word for word in call if word.startswith("-gencode=")]
        assert generated == [f"-gencode=arch=compute_{architecture}" for architecture in architectures]
    (link,) = (call for call in of_nvcc if "-c" not in call)
    assert {"-shared", "-cudart=static", "-ltorch_cpu"} <= set(link)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CROSSRET_SKIP_CUDA": "1"}, "CROSSRET_SKIP_CUDA is set"),
        ({"torch": "12.8"}, "nvcc is of CUDA 13.0, and this PyTorch is built with CUDA 12.8"),
    ],
    ids=["skipped", "another CUDA"],
)
def test_without_cuda_a_build_says_why_or_fails(
    project: Path, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    environment = {"CUDA_HOME": toolkit(tmp_path / "toolkit"), "torch": "13.0", **environment}
    environment["PYTHONPATH"] = torch_with_cuda(tmp_path / "packages", environment.pop("torch"))
    build = ("build_py", "--build-lib", str(tmp_path / "lib"))
    done = run_setup(project, *build, **environment)
    assert done.returncode == 0, done.stderr
    assert f"crossret is built WITHOUT its CUDA library: {reason}." in done.stdout
    kept = tmp_path / "lib" / "crossret_kernels" / "_native_cuda_missing.txt"
    assert kept.read_text(encoding="utf-8") == f"{reason}\n"
    forced = run_setup(project, *build, **environment, CROSSRET_FORCE_CUDA="1")
    assert forced.returncode != 0
    assert forced.stderr.strip() == (
        f"error: crossret is to be built with its CUDA library (CROSSRET_FORCE_CUDA): {reason}."
    )


def test_a_torch_without_cuda_gets_a_library_for_gpus_if_forced(project: Path, tmp_path: Path) -> None:
    build = ("build_py", "--build-lib", str(tmp_path / "lib"))
    torch = torch_with_cuda(tmp_path / "packages", "13.0")
    Path(torch, "torch", "version.py").write_text("cuda: Optional[str] = None\n", encoding="ascii")
    environment = {"CUDA_HOME": toolkit(tmp_path / "toolkit"), "PYTHONPATH": torch}
    usual = run_setup(project, *build, **environment)
    assert "WITHOUT its CUDA library: this PyTorch is built without CUDA." in usual.stdout
    forced = run_setup(project, *build, **environment, CROSSRET_FORCE_CUDA="1")
    says = "its CUDA library, of CUDA 13.0, beside a PyTorch without it, for 8.0+PTX 9.0 10.0+PTX."
    assert f"crossret is built with {says}" in forced.stdout
    unknown = run_setup(project, *build, **environment, CROSSRET_FORCE_CUDA="1", TORCH_CUDA_ARCH_LIST="Hopper")
    assert unknown.returncode != 0
    assert "error: TORCH_CUDA_ARCH_LIST names 'Hopper'; it takes numbers such as 8.0, 9.0a" in unknown.stderr


def test_without_a_compiler_a_wheel_for_any_machine_says_why_it_has_no_library(project: Path, tmp_path: Path) -> None:
    target, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    install = ["install", "--no-build-isolation", "--no-deps", "--no-index", "--verbose", "--target", str(target), "."]
    done = run_python(project, "-m", "pip", *install, PATH=str(empty))
    assert done.returncode == 0, done.stderr
    reason = "it needs a C++17 compiler, and none was found: install g++ or clang++, or name one in CXX"
    assert f"crossret is built WITHOUT its native library: {reason}." in done.stdout + done.stderr
    (wheel,) = target.glob("crossret-*.dist-info/WHEEL")
    assert "Tag: py3-none-any\n" in wheel.read_text(encoding="utf-8")
    info = run_python(target, "-m", "crossret_kernels.info", PYTHONPATH=str(target)).stdout.splitlines()
    assert info[0] == f"crossret_kernels in {target / 'crossret_kernels'}"
    assert f"native CPU kernels: none, the native library was not built ({reason})" in info
    assert "cpu torch.float32: torch" in info


def test_another_platform_builds_without_the_library(project: Path) -> None:
    # setuptools itself first: it would look for what only that platform has.
    code = "import runpy, setuptools.command.build_ext, sys; sys.platform = 'darwin'; runpy.run_path(sys.argv.pop(1))"
    for environment, returncode in (({}, 0), ({"CROSSRET_FORCE_NATIVE": "1"}, 1)):
        done = run_python(project, "-c", code, "setup.py", "--quiet", "build_py", **environment)
        assert done.returncode == returncode, done.stderr
        assert "it builds on Linux, and this is darwin" in done.stdout + done.stderr


def inspect_library(*tool: str) -> str:
    """What a binutils tool says about the library that these tests run with."""
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    library = Path(crossret_kernels.__file__).parent / LIBRARY
    return subprocess.run([*tool, str(library)], capture_output=True, text=True, check=True).stdout


def test_library_uses_nothing_of_torch_but_its_stable_abi() -> None:
    undefined = [
        line.split()[-1] for line in inspect_library("nm", "-D", "--undefined-only").splitlines() if " U " in line
    ]
    # The C and C++ runtimes version their symbols; all else must be the stable ABI, which also rules out Python's.
    others = {name for name in undefined if "@" not in name}
    assert others
    assert {name for name in others if not name.startswith(("aoti_torch_", "torch_"))} == set()
    # Reading the environment would race with threads that set variables: os.environ's own reaches no native library.
    assert not [name for name in undefined if re.match(r"(\w*_)?getenv", name)]


def test_library_links_only_torch_cpu_and_the_runtimes() -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", inspect_library("readelf", "-d", "-W")))
    assert "libtorch_cpu.so" in needed
    runtimes = r"(libstdc\+\+|libgcc_s|libm|libc|ld-linux[\w-]*)\.so\.\d+"
    assert {name for name in needed - {"libtorch_cpu.so"} if not re.fullmatch(runtimes, name)} == set()


def found(pattern: str, file: str) -> list[str]:
    """What a file of the project says at the beginnings of its lines."""
    return re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_version_is_the_changelogs_newest() -> None:
    (declared,) = found(r'^version = "(.+)"', "pyproject.toml")
    assert found(r"^## (\S+)", "CHANGELOG.md")[0] == declared == metadata.version("crossret")


def requirements() -> dict[str, str]:
    """The distribution's requirements, version and extra and all, by project name."""
    return {re.split(r"[^\w.-]", line)[0].lower(): line for line in metadata.requires("crossret") or []}


def test_every_requirement_is_pinned_for_development() -> None:
    (build,) = found(r"^requires = \[(.+)\]", "pyproject.toml")
    assert {*requirements(), *re.findall(r'"([\w-]+)', build)} <= set(found(r"^([\w.-]+)==", "constraints.txt"))


def test_entry_point_knows_every_package_of_the_extra_and_notices_where_one_is_missing() -> None:
    assert {name for name, line in requirements().items() if "extra ==" not in line} == {"torch", "numpy"}
    (script,) = metadata.entry_points(group="console_scripts", name="crossret")
    assert script.load() is command.main
    modules = {"pillow": "PIL", "tomli-w": "tomli_w"}
    lines = {name: line.replace('"', "'") for name, line in requirements().items()}
    app = {
        modules.get(name, name)
        for name, line in lines.items()
        if "extra == 'app'" in line and "python_version" not in line  # the standard library's, for older Pythons
    }
    assert app == set(command.APP_MODULES)
    hide = f"import sys; sys.modules.update(dict.fromkeys({command.APP_MODULES!r}))"
    done = run_python(ROOT, "-c", f"{hide}; from crossret.__main__ import main; main()")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
