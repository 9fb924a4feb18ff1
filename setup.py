"""Build the libraries of crossret_kernels with ninja; every other setting is in pyproject.toml.

Both register their operations through torch's stable ABI, so one file serves every Python >= 3.10 and every
torch >= 2.10. Flags are the ones written here: CFLAGS, CXXFLAGS, CPPFLAGS, LDFLAGS and those of nvcc are not read,
so nothing of the build machine leaks into a wheel. Read from the environment: CXX (a compiler, without flags), MAX_JOBS
(how many files compile at once), and what follows.

`_native` holds the kernels for CPUs. On a machine that has no C++ compiler, or is no Linux, the packages are installed
without it: they then compute in PyTorch's operations. CROSSRET_FORCE_NATIVE=1 makes that an error.
CROSSRET_EMULATED_AMX=1 adds the kernels of AMX in plain C++, for tests on processors without it.

`_native_cuda` holds the kernels for GPUs. It is built where `_native` is, this torch is built with CUDA, and nvcc of
the same major version is found in CUDA_HOME or on PATH, whether or not there is a GPU. CROSSRET_SKIP_CUDA=1 leaves it
out; CROSSRET_FORCE_CUDA=1 builds it beside a torch without CUDA too, and makes it an error that it cannot be built.
TORCH_CUDA_ARCH_LIST names the GPUs.

The build says what it builds, and the installed package keeps the reasons. A compiler that is there and fails is an
error always.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, PlatformError

sys.path.insert(0, str(Path(__file__).parent))  # which a build in isolation leaves out

from setup_cuda import Cuda, find_cuda, flag, torch_directory

CSRC = Path("csrc")
EMULATED = Path("tests", "native", "amx_emulated.cpp")  # AMX, for processors without it
COMPILE_FLAGS = [
    *["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"],
    *["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
    "-fno-strict-aliasing",  # rows of pairs of bfloat16 are read as 32-bit elements
    *["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DPy_LIMITED_API=0x030a0000"],
]
# For the tests of `make sanitize`: GCC's checks of memory, of arithmetic and of the standard library's containers.
SANITIZE_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]
SANITIZE_COMPILE_FLAGS = [*SANITIZE_FLAGS, "-O1", "-D_GLIBCXX_ASSERTIONS"]
# Only libtorch_cpu exports the stable ABI. Nothing may stay undefined: a symbol outside that ABI stops the build here.
# -pthread: where pthread_atfork is, before glibc 2.34.
LINK_FLAGS = ["-shared", "-pthread", "-Wl,--as-needed", "-Wl,--no-undefined"]
# By nvcc: the CUDA runtime goes into the library, so that nothing of the toolkit is needed where it runs, and stays its
# own beside that of torch.
CUDA_COMPILE_FLAGS = ["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra"]
CUDA_LINK_FLAGS = ["-shared", "-cudart=static", "--no-device-link"]
CUDA_LINK_FLAGS += [f"-Xlinker={flag}" for flag in ("--as-needed", "--no-undefined", "--exclude-libs=ALL")]
NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # whose flags it would take besides
# Kept between builds, and by editable installs too, so that an edit recompiles the files it reaches and no other.
OBJECTS = {"_native": Path("build", "native"), "_native_cuda": Path("build", "native-cuda")}
SANITIZED_OBJECTS = Path("build", "native-sanitized")
COMPILERS = ("c++", "g++", "clang++")  # the first of these on PATH, unless CXX names one
# Written into a package that is built without a library: why. crossret_kernels.backends reads them.
REASON_FILES = {name: Path("crossret_kernels", f"{name}_missing.txt") for name in OBJECTS}
BYTES_PER_JOB = 1 << 30  # four times what the largest file takes
BYTES_PER_NVCC = 2 << 30  # nine times


def reason_without_library() -> str | None:
    """Why the native library is not built on this machine; None where it is. A named compiler is to build it."""
    if sys.platform != "linux":
        return f"it builds on Linux, and this is {sys.platform}"
    if not os.environ.get("CXX", "").strip() and not any(shutil.which(name) for name in COMPILERS):
        return "it needs a C++17 compiler, and none was found: install g++ or clang++, or name one in CXX"
    return None


def find_compiler() -> list[str]:
    """The C++ compiler as a command: CXX (it may begin with a launcher such as ccache), else the first one on PATH."""
    if os.environ.get("CXX", "").strip():
        command = shlex.split(os.environ["CXX"])
        if any(word.startswith("-") for word in command):
            raise PlatformError(
                f"CXX={os.environ['CXX']!r} holds flags; name the compiler alone: setup.py sets the flags."
            )
        if shutil.which(command[-1]) is None:
            raise PlatformError(f"crossret needs a C++17 compiler, and CXX={os.environ['CXX']!r} was not found.")
        return command
    return [next(name for name in COMPILERS if shutil.which(name) is not None)]


def available_memory() -> int:
    """Bytes that compilers may use: what the machine has left, or what the control group allows where that is less."""
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    limits = [int(kib) << 10 for kib in re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)]
    group = Path("/sys/fs/cgroup/memory.max")
    if group.exists() and (limit := group.read_text(encoding="ascii").strip()).isdigit():
        limits.append(int(limit))
    return min(limits, default=BYTES_PER_JOB)


def parallel_jobs() -> int:
    """How many files to compile at once: MAX_JOBS, else one a core as far as memory goes."""
    asked = os.environ.get("MAX_JOBS", "").strip()
    if not asked:
        return max(1, min(len(os.sched_getaffinity(0)), available_memory() // BYTES_PER_JOB))
    if not asked.isdigit() or int(asked) < 1:
        raise PlatformError(f"MAX_JOBS must be a whole number of at least 1, and it is {asked!r}.")
    return int(asked)


def ninja_path(path: str | Path) -> str:
    """A path as a ninja build line spells it."""
    return re.sub(r"([$ :])", r"$\1", str(path))


def ninja_command(*words: str | Path) -> str:
    """Words as a ninja rule's command line spells them for the shell."""
    return shlex.join(map(str, words)).replace("$", "$$")


class Rule(NamedTuple):
    """How one kind of source is compiled; $in, $out and the list of headers are added."""

    command: list[str | Path]
    at_once: int | None = None  # files, where that is not the build's


def ninja_file(rules: dict[str, Rule], link: list[str | Path], ext: Extension, library: Path) -> str:
    """The build as ninja reads it: a source to an object by its suffix, the objects to the library.

    Compilers list headers, torch's too, so that another torch recompiles.
    """
    objects = {source: library.parent / f"{source}.o" for source in ext.sources}
    lines = [f"builddir = {library.parent}"]  # where ninja keeps its own records
    for suffix, rule in rules.items():
        if rule.at_once is not None:
            lines += [f"pool of_{suffix}", f"  depth = {rule.at_once}"]
        lines += [
            f"rule compile_{suffix}",
            f"  command = {ninja_command(*rule.command)} -MD -MF $out.d -c $in -o $out",
            "  description = compile $in",
            "  depfile = $out.d",
            "  deps = gcc",
            *([f"  pool = of_{suffix}"] if rule.at_once is not None else []),
        ]
    torch_cpu = ninja_command("-L", torch_directory() / "lib", "-ltorch_cpu")
    lines += [
        "rule link",
        f"  command = {ninja_command(*link)} $in {torch_cpu} -o $out",
        "  description = link $out",
        *(
            f"build {ninja_path(target)}: compile_{Path(source).suffix[1:]} {ninja_path(source)}"
            for source, target in objects.items()
        ),
        f"build {ninja_path(library)}: link {' '.join(map(ninja_path, objects.values()))}",
        "",
    ]
    return "\n".join(lines)


def compile_rule(compiler: list[str], *more: str) -> Rule:
    """Of C++ sources."""
    return Rule([*compiler, *COMPILE_FLAGS, *more, "-Icsrc", "-isystem", torch_directory() / "include"])


class NinjaBuild(build_ext):
    """build_ext that leaves compiling and linking to ninja, with this file's flags and nobody else's."""

    user_options: ClassVar = [
        *build_ext.user_options,
        ("sanitize", None, "build with AddressSanitizer and UndefinedBehaviorSanitizer (GCC)"),
    ]
    boolean_options: ClassVar = [*build_ext.boolean_options, "sanitize"]

    def initialize_options(self) -> None:
        """No sanitizers unless asked for."""
        super().initialize_options()
        self.sanitize = False

    def build_extension(self, ext: Extension) -> None:
        """Build into OBJECTS, or beside it with sanitizers, and copy the library to where setuptools wants it."""
        name = ext.name.rpartition(".")[2]
        if self.sanitize and name != "_native":
            return
        target = Path(self.get_ext_fullpath(ext.name))
        objects = SANITIZED_OBJECTS if self.sanitize else OBJECTS[name]
        library = objects / target.name
        recipe = objects / "build.ninja"
        objects.mkdir(parents=True, exist_ok=True)
        jobs = parallel_jobs()
        rules = self.cuda_rules(ext, library, jobs) if name == "_native_cuda" else self.native_rules(ext, library)
        recipe.write_text(rules, encoding="utf-8")
        command = [sys.executable, "-m", "ninja", "-f", str(recipe), "-j", str(jobs)]
        environment = {key: value for key, value in os.environ.items() if key not in NVCC_VARIABLES}
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            which = "CUDA" if name == "_native_cuda" else "native"
            raise CompileError(f"the {which} library did not build; what the compiler said stands above.")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(library), str(target))

    def native_rules(self, ext: Extension, library: Path) -> str:
        """One compiler for all."""
        compiler = find_compiler()
        emulated = ["-DCROSSRET_EMULATED_AMX"] if flag("CROSSRET_EMULATED_AMX") else []
        rule = compile_rule(compiler, *emulated, *(SANITIZE_COMPILE_FLAGS if self.sanitize else []))
        link = [*compiler, *LINK_FLAGS, *(SANITIZE_FLAGS if self.sanitize else [])]
        return ninja_file({"cpp": rule}, link, ext, library)

    def cuda_rules(self, ext: Extension, library: Path, jobs: int) -> str:
        """nvcc knows where its headers and libraries are; it takes the compiler of the rest for host code."""
        assert isinstance(cuda, Cuda)  # else there is no such extension
        compiler = find_compiler()
        nvcc: list[str | Path] = [cuda.nvcc, f"-ccbin={shutil.which(compiler[-1])}"]
        # Architectures of one file compile beside each other, then files as far as that goes.
        at_once = max(1, min(jobs, available_memory() // BYTES_PER_NVCC))
        threads = min(at_once, len(cuda.architectures))
        device = [*nvcc, *CUDA_COMPILE_FLAGS, *cuda.generate(), f"--threads={threads}", "-Icsrc"]
        defined = f'-DCROSSRET_CUDA_ARCHITECTURES="{" ".join(cuda.architectures)}"'
        rules = {"cpp": compile_rule(compiler, defined), "cu": Rule(device, at_once // threads)}
        return ninja_file(rules, [*nvcc, *CUDA_LINK_FLAGS], ext, library)


class RecordingBuild(build_py):
    """build_py that says which libraries the packages come with, and leaves in them why they lack one."""

    def run(self) -> None:
        """Copy the packages; write, or remove, the reasons."""
        super().run()
        self.record("_native", "its native library", missing)
        if isinstance(cuda, Cuda):
            self.record("_native_cuda", f"its CUDA library, {cuda}", None)
        else:
            self.record("_native_cuda", "its CUDA library", cuda)

    def record(self, name: str, library: str, reason: str | None) -> None:
        """Of one library."""
        record = REASON_FILES[name] if self.editable_mode else Path(self.build_lib, REASON_FILES[name])
        if reason is None:
            print(f"crossret is built with {library}.", flush=True)
            record.unlink(missing_ok=True)
        else:
            print(f"crossret is built WITHOUT {library}: {reason}.", flush=True)
            record.write_text(f"{reason}\n", encoding="utf-8")


def extension(name: str, sources: Iterable[Path], *headers: str) -> Extension:
    """One library, rebuilt when any of its sources changes, or a header."""
    return Extension(
        f"crossret_kernels.{name}",
        sources=sorted(map(str, sources)),
        depends=sorted(str(path) for pattern in headers for path in CSRC.rglob(pattern)),
        py_limited_api=True,
    )


def libraries() -> list[Extension]:
    """Those that are built. C++ that is CUDA's lies in csrc/cuda, or its name says so."""
    of_cuda = {path for pattern in ("cuda/*.cpp", "**/cuda_*.cpp") for path in CSRC.glob(pattern)}
    emulated = [EMULATED] if flag("CROSSRET_EMULATED_AMX") else []
    made = []
    if missing is None:
        made.append(extension("_native", {*CSRC.rglob("*.cpp"), *emulated} - of_cuda, "*.h", "*.inl"))
    if isinstance(cuda, Cuda):
        made.append(extension("_native_cuda", [*of_cuda, *CSRC.rglob("*.cu")], "*.h", "*.cuh"))
    return made


def cuda_or_reason() -> Cuda | str:
    """What the CUDA library is built with, or why it is not built."""
    if missing is not None:
        return "the native library is missing too"
    try:
        return find_cuda()
    except PlatformError as error:
        return str(error).rstrip(".")


missing = reason_without_library()
if missing is not None and flag("CROSSRET_FORCE_NATIVE"):
    sys.exit(f"error: crossret is to be built with its native library (CROSSRET_FORCE_NATIVE): {missing}.")
try:
    cuda = cuda_or_reason()
except ValueError as error:
    sys.exit(f"error: {error}.")
if isinstance(cuda, str) and flag("CROSSRET_FORCE_CUDA"):
    sys.exit(f"error: crossret is to be built with its CUDA library (CROSSRET_FORCE_CUDA): {cuda}.")

setup(
    ext_modules=libraries(),  # without one, the wheel is one for any machine
    cmdclass={"build_ext": NinjaBuild, "build_py": RecordingBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
