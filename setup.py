"""Build crossret_kernels._native, the native library, with ninja; every other setting is in pyproject.toml.

The library registers its operations through torch's stable ABI, so one file serves every Python >= 3.10 and every
torch >= 2.11. Its flags are the ones written here: CFLAGS, CXXFLAGS, CPPFLAGS and LDFLAGS are not read, so nothing of
the build machine leaks into a wheel. Read from the environment: CXX (a compiler, without flags), MAX_JOBS (how many
files compile at once) and CROSSRET_FORCE_NATIVE.

On a machine that has no C++ compiler, or is no Linux, the packages are installed without the library: they then compute
in PyTorch's operations. The build says so, and the installed package keeps the reason. CROSSRET_FORCE_NATIVE=1 makes
that an error. A compiler that is there and fails is an error always.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, PlatformError

COMPILE_FLAGS = [
    *["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"],
    *["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
    *["-DTORCH_TARGET_VERSION=0x020b000000000000", "-DPy_LIMITED_API=0x030a0000"],
]
# For the tests of `make sanitize`: GCC's checks of memory, of arithmetic and of the standard library's containers.
SANITIZE_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"]
SANITIZE_COMPILE_FLAGS = [*SANITIZE_FLAGS, "-O1", "-D_GLIBCXX_ASSERTIONS"]
# Only libtorch_cpu exports the stable ABI. Nothing may stay undefined: a symbol outside that ABI stops the build here.
# -pthread: where pthread_atfork is, before glibc 2.34.
LINK_FLAGS = ["-shared", "-pthread", "-Wl,--as-needed", "-Wl,--no-undefined"]
TORCH_MINIMUM = (2, 11)
# Kept between builds, and by editable installs too, so that an edit recompiles the files it reaches and no other.
OBJECTS = Path("build", "native")
SANITIZED_OBJECTS = Path("build", "native-sanitized")
COMPILERS = ("c++", "g++", "clang++")  # the first of these on PATH, unless CXX names one
# Written into a package that is built without the library: why. crossret_kernels.backends reads it.
REASON_FILE = Path("crossret_kernels", "_native_missing.txt")
BYTES_PER_JOB = 1 << 30  # four times what the largest file takes


def torch_directory() -> Path:
    """Where the installed torch is; it is not imported, which would cost every build seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise PlatformError("crossret builds against torch >= 2.11, and torch is not installed in this Python.")
    version = metadata.version("torch")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < TORCH_MINIMUM:
        raise PlatformError(f"crossret builds against torch >= 2.11, and torch {version} is installed in this Python.")
    return Path(spec.origin).parent


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


def ninja_file(compiler: list[str], sources: list[str], torch: Path, library: Path, *, sanitize: bool) -> str:
    """The build as ninja reads it: a source to an object, the objects to the library, headers as the compiler lists."""
    compile_flags = [*COMPILE_FLAGS, *(SANITIZE_COMPILE_FLAGS if sanitize else [])]
    compile_command = ninja_command(*compiler, *compile_flags, "-Icsrc", "-isystem", torch / "include")
    link_command = ninja_command(*compiler, *LINK_FLAGS, *(SANITIZE_FLAGS if sanitize else []))
    libraries = ninja_command("-L", torch / "lib", "-ltorch_cpu")
    objects = {source: library.parent / f"{source}.o" for source in sources}
    return "\n".join(
        [
            # Where ninja keeps its own records.
            f"builddir = {library.parent}",
            "rule compile",
            # -MD lists torch's headers too, so that another torch recompiles.
            f"  command = {compile_command} -MD -MF $out.d -c $in -o $out",
            "  description = compile $in",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            f"  command = {link_command} $in {libraries} -o $out",
            "  description = link $out",
            *(f"build {ninja_path(target)}: compile {ninja_path(source)}" for source, target in objects.items()),
            f"build {ninja_path(library)}: link {' '.join(map(ninja_path, objects.values()))}",
            "",
        ]
    )


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
        compiler = find_compiler()
        target = Path(self.get_ext_fullpath(ext.name))
        objects = SANITIZED_OBJECTS if self.sanitize else OBJECTS
        library = objects / target.name
        recipe = objects / "build.ninja"
        objects.mkdir(parents=True, exist_ok=True)
        rules = ninja_file(compiler, ext.sources, torch_directory(), library, sanitize=bool(self.sanitize))
        recipe.write_text(rules, encoding="utf-8")
        command = [sys.executable, "-m", "ninja", "-f", str(recipe), "-j", str(parallel_jobs())]
        if subprocess.run(command, check=False).returncode != 0:
            raise CompileError("the native library did not build; what the compiler said stands above.")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(library), str(target))


class RecordingBuild(build_py):
    """build_py that says whether the packages come with the native library, and leaves in them why not."""

    def run(self) -> None:
        """Copy the packages; write, or remove, the reason."""
        super().run()
        record = REASON_FILE if self.editable_mode else Path(self.build_lib, REASON_FILE)
        reason = reason_without_library()
        if reason is None:
            print("crossret is built with its native library.", flush=True)
            record.unlink(missing_ok=True)
            return
        print(f"crossret is built WITHOUT its native library: {reason}.", flush=True)
        record.write_text(f"{reason}\n", encoding="utf-8")


def native_library() -> Extension:
    """The one extension: every C++ source under csrc, rebuilt when any file there changes."""
    csrc = Path("csrc")
    return Extension(
        "crossret_kernels._native",
        sources=sorted(str(path) for path in csrc.rglob("*.cpp")),
        depends=sorted(str(path) for pattern in ("*.h", "*.inl") for path in csrc.rglob(pattern)),
        py_limited_api=True,
    )


missing = reason_without_library()
if missing is not None and os.environ.get("CROSSRET_FORCE_NATIVE", "") not in ("", "0"):
    sys.exit(f"error: crossret is to be built with its native library (CROSSRET_FORCE_NATIVE): {missing}.")

setup(
    ext_modules=[] if missing else [native_library()],  # without one, the wheel is one for any machine
    cmdclass={"build_ext": NinjaBuild, "build_py": RecordingBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
