"""Builds libcudamempool.so from the tree around this folder and puts it into the package, unless CUDAMEMPOOL_LIBRARY names one to take."""
import os
import shutil
import subprocess
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

NAME = "libcudamempool.so"
TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # the library is found in the tree's build folder
            return
        target = os.path.join(self.build_lib, "cudamempool", NAME)
        given = os.environ.get("CUDAMEMPOOL_LIBRARY")
        if given:
            shutil.copyfile(given, target)
            return
        with tempfile.TemporaryDirectory() as build:
            subprocess.run(["cmake", "-S", TREE, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DCMPOOL_TESTS=OFF"], check=True)
            subprocess.run(["cmake", "--build", build, "--target", "cudamempool", "--parallel"], check=True)
            shutil.copyfile(os.path.join(build, "lib", NAME), target)


class WithBinary(Distribution):
    def has_ext_modules(self):  # the wheel is for one kind of machine
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=WithBinary)
