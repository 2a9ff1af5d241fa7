"""The build step of the native kernels; everything else stands in pyproject.toml."""

import importlib.util
import shutil
import warnings
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ENGINE = Path("src/snip/engine")
BUILT = ENGINE / "_kernels.so"


def load_build() -> ModuleType:
    """snip.engine.build by its path: importing the package would need torch."""
    spec = importlib.util.spec_from_file_location("snip_build", ENGINE / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernels(build_ext):
    """Compiles one library, without Python's name tag; a failure leaves the package whole.

    One that stands beside the sources and was built from them is taken as it is.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        build, version = load_build(), self.distribution.get_version()
        if build.is_unwanted():
            return
        try:
            target = Path(self.get_ext_fullpath(ext.name))
            if not build.is_current(BUILT, version=version):
                build.build_library(target, version=version)
            elif target.resolve() != BUILT.resolve():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(BUILT, target)
        except OSError as error:
            warnings.warn(
                f"snip runs dense: its native kernels were not built: {error}", stacklevel=1
            )


class AnyPython(bdist_wheel):
    """The library does not link Python, so one wheel per platform serves every version."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "snip.engine._kernels",
            sources=sorted(map(str, ENGINE.glob("native/*.cpp"))),
            # The node of autograd among them is built later, where torch is.
            depends=sorted(
                map(str, [*ENGINE.glob("native/*.hpp"), *ENGINE.glob("native/torch/*pp")])
            ),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
