"""What `cmake --install` lays down is enough for a program elsewhere: by pkg-config, and by find_package."""
import os
import subprocess
import sys
import tempfile

import tree

PROGRAM = """
#include <cudamempool/cudamempool.h>
#include <stdio.h>
int main(void)
{
    cmpool_t pool;
    void *block;
    cmpool_status status = cmpool_create(&pool, NULL);
    if (status == CMPOOL_OK && (status = cmpool_malloc(pool, &block, 1 << 20, NULL)) == CMPOOL_OK)
        status = cmpool_free(pool, block, NULL);
    if (status == CMPOOL_OK)
        status = cmpool_destroy(pool);
    printf("%s\\n", cmpool_status_name(status));
    return status != CMPOOL_OK;
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(cudamempool 0.1 REQUIRED)
add_executable(consumer consumer.c)
target_link_libraries(consumer cudamempool::cudamempool)
"""


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        print(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        sys.exit(1)
    return result.stdout


def find(prefix, name):
    for here, _, names in os.walk(prefix):
        if name in names:
            return here
    sys.exit(f"{name} was not installed")


def main():
    _, build = tree.arguments()
    if tree.cache_value(build, "CMPOOL_SANITIZE") or tree.cache_value(build, "CMPOOL_FUZZ") == "ON":
        tree.skip("a sanitized library needs a sanitized program")
    compiler = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "prefix")
        run(["cmake", "--install", build, "--prefix", prefix])
        for name in ("cudamempool.h", "options.def", "cudamempool-config.cmake", "cudamempool"):
            find(prefix, name)
        simcuda = find(prefix, "libcuda.so.1")
        for runtime in ("libcudart.so.12", "libcudart.so.13"):
            find(simcuda, runtime)
        for name, text in (("consumer.c", PROGRAM), ("CMakeLists.txt", PROJECT)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)

        library = find(prefix, "libcudamempool.so")
        environment = dict(os.environ, PKG_CONFIG_PATH=find(prefix, "cudamempool.pc"), LD_LIBRARY_PATH=library,
                           CUDAMEMPOOL_DRIVER=os.path.join(simcuda, "libcuda.so.1"), SIMCUDA_DEVICE="sim:64MiB")
        flags = run(["pkg-config", "--cflags", "--libs", "cudamempool"], env=environment).split()
        run([compiler, "-std=c11", "consumer.c", "-o", "by-pkg-config", *flags], cwd=folder)
        run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={compiler}"], cwd=folder)
        run(["cmake", "--build", "build"], cwd=folder)
        for program in ("./by-pkg-config", "./build/consumer"):
            run([program], cwd=folder, env=environment)
    tree.finish([], 2)


main()
