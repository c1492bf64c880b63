"""Tests of the tests: each deliberate fault of lib/base/mutations.def is built into the library, and a test must fail because of it.

    python3 tests/mutations/run.py --all                     every mutation
    python3 tests/mutations/run.py --short                   a few of them, for ctest
    python3 tests/mutations/run.py WAIT_SKIPPED USE_FORGOTTEN

In each order of the simulated device in which the mutation does harm the random programs run with fixed seeds, and where they do not
notice it the tests below (not in the short form), each kept to that order. The library as it is has to pass all of them. A mutation that
no test notices in one of its orders is a failure. --build names a release build of this tree; what is missing in it is built.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORDERS = ["eager", "lazy", "random"]
SHORT = ["WAIT_SKIPPED", "UNMAP_TOO_EARLY", "SIBLINGS_NOT_ASKED"]
# Operations of random programs in one order: most faults show in the first few thousand.
OPERATIONS = {"short": 40000, "long": 400000}
SECONDS_OF_A_TEST = {"short": 30, "long": 200}
# Test programs that go through pool_fixture.h, which keeps them to one order; the most telling ones first.
UNIT_TESTS = ["test_pool_cache", "test_pool_lease", "test_pool_streams", "test_pool_capture", "test_pool_capture_room", "test_pool_churn", "test_pool_limits", "test_pool_faults"]


def read_mutations():
    """name -> (orders, what, sources that have it)."""
    text = (ROOT / "lib/base/mutations.def").read_text()
    found = re.findall(r'^MUTATION\((\w+), "([a-z ]+)",\s*"([^"]+)"\)$', text, re.M)
    if len(found) != text.count("\nMUTATION("):
        sys.exit("lib/base/mutations.def has a line that is no MUTATION(name, orders, what)")
    mutations = {name: (orders.split(), what, []) for name, orders, what in found}
    for path in sorted((ROOT / "lib").glob("*/*.c")):
        for name in re.findall(r"CMI_MUTATION\((\w+)\)", path.read_text()):
            mutations[name][2].append(path)
    for name, (orders, _, sources) in mutations.items():
        if not sources or not set(orders) <= set(ORDERS):
            sys.exit(f"{name}: no source has it, or an order is unknown")
    return mutations


def must(command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")


class Build:
    """The library and the simulated device from a build folder; test programs, with or without a mutation, in a folder of their own."""

    def __init__(self, folder, jobs):
        self.folder, self.work, self.jobs = folder, folder / "mutations", jobs
        if not (folder / "CMakeCache.txt").exists():
            must(["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release"])
        cache = (folder / "CMakeCache.txt").read_text()
        for wrong in [r"CMPOOL_VALIDATE:\w+=ON", r"CMPOOL_SANITIZE:\w+=.+", r"CMPOOL_MUTATION:\w+=.+", r"CMPOOL_FUZZ:\w+=ON"]:
            if re.search(f"^{wrong}$", cache, re.M):
                sys.exit(f"{folder} is no plain release build")
        self.compiler = re.search(r"^CMAKE_C_COMPILER:\w+=(.+)$", cache, re.M).group(1)
        self.driver = folder / "simcuda/libcuda.so.1"
        self.flags = ["-std=gnu11", "-O1", "-w", "-D_GNU_SOURCE", "-I", ROOT / "include", "-I", ROOT / "lib", "-I", ROOT / "tools/simcuda",
                      f'-DSIMCUDA_DIR="{folder / "simcuda"}"', f'-DTEST_BUILD_DIR="{folder}"', f'-DTEST_SOURCE_DIR="{ROOT}"']
        self.libraries = [folder / "lib/libcmi_internal.a"]
        jemalloc = pathlib.Path(re.search(r"^CMPOOL_JEMALLOC_DIR:\w+=(.+)$", cache, re.M).group(1))
        if (jemalloc / "lib/libjemalloc_pic.a").exists() and not re.search(r"^CMPOOL_JEMALLOC:\w+=OFF$", cache, re.M):
            self.libraries.append(jemalloc / "lib/libjemalloc_pic.a")
            self.flags += ["-DCMI_HAVE_JEMALLOC", "-I", jemalloc / "include"]
        self.work.mkdir(exist_ok=True)

    def build_library(self):
        must(["cmake", "--build", self.folder, "-j", self.jobs, "--target", "cmi_internal", "simcuda_driver"])

    def compile(self, source, mutation="NONE"):
        out = self.work / mutation / (re.sub(r"\W", "_", str(source.relative_to(ROOT))) + ".o")
        out.parent.mkdir(exist_ok=True)
        must([self.compiler, *self.flags, f"-DCMI_MUTATE={mutation}", "-c", source, "-o", out])
        return out

    def link(self, program, objects, mutation, mutants):
        """A mutant comes before the library and so takes the place of its member."""
        out = self.work / mutation / program
        must([self.compiler, "-fno-lto", *objects, *mutants, *self.libraries, "-lcmocka", "-lpthread", "-ldl", "-lm", "-o", out])
        return out


def test_sources(unit_tests):
    """Program name -> its sources. All of them look inside the library, so that a mutant can be linked in."""
    programs = {"test_pool_property": sorted((ROOT / "tests/property").glob("*.c"))}
    return programs | {name: [ROOT / f"tests/unit/{name}.c"] for name in unit_tests}


def run_test(build, program, order, operations, seconds):
    """The first line of a failure, or None."""
    environment = dict(os.environ, CUDAMEMPOOL_DRIVER=str(build.driver), CMPOOL_TEST_FIRST_SEED="1", CMPOOL_TEST_SHRINK_SECONDS="0",
                       CMPOOL_TEST_PROGRAM_SECONDS="10", CMPOOL_TEST_OPERATIONS=str(operations), CMPOOL_TEST_SECONDS=str(seconds),
                       CMPOOL_TEST_ORDER=order)
    try:
        result = subprocess.run([program], env=environment, capture_output=True, text=True, errors="replace", timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        return "hangs"
    if result.returncode == 0:
        return None
    told = re.search(r"CMPOOL_TEST_SEED=.*?: operation.*?: (.*)", result.stderr)
    failed = re.search(r"\[  FAILED  \] ([a-z_]\w*)", result.stderr + result.stdout)
    return told.group(1) if told else failed.group(1) if failed else f"ends with {result.returncode}"


def run_all(build, mutation, programs, orders, operations, seconds):
    """(order, program, first line of the failure or None) of each test, the property test first; an order that is seen to fail is left."""
    seen = []
    with concurrent.futures.ThreadPoolExecutor(build.jobs) as pool:
        def one(order):
            for name, path in programs.items():
                fault = run_test(build, path, order, operations, seconds)
                if fault or mutation == "NONE":
                    seen.append((order, name, fault))
                if fault:
                    return
        list(pool.map(one, orders))
    return sorted(seen, key=lambda line: ORDERS.index(line[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MUTATION")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-mutations")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--operations", type=int)
    arguments = parser.parse_args()
    mutations = read_mutations()
    names = SHORT if arguments.short else list(mutations) if arguments.all else arguments.names
    if not names or not set(names) <= set(mutations):
        parser.error("name mutations of lib/base/mutations.def, or say --all or --short")
    form = "short" if arguments.short else "long"
    operations, seconds = arguments.operations or OPERATIONS[form], SECONDS_OF_A_TEST[form]

    build = Build(arguments.build.resolve(), arguments.jobs)
    build.build_library()
    sources = test_sources([] if arguments.short else UNIT_TESTS)
    with concurrent.futures.ThreadPoolExecutor(build.jobs) as pool:
        objects = {name: list(pool.map(build.compile, paths)) for name, paths in sources.items()}
    bad = []
    for mutation in ["NONE", *names]:
        started = time.time()
        orders, what, mutated = mutations.get(mutation, (ORDERS, "the library as it is", []))
        mutants = [build.compile(path, mutation) for path in mutated]
        programs = {name: build.link(name, made, mutation, mutants) for name, made in objects.items()}
        seen = run_all(build, mutation, programs, orders, operations, seconds)
        print(f"{mutation}: {what} ({time.time() - started:.1f} s)")
        for order, program, fault in seen:
            print(f"    {order:7} {program}: {fault or 'passes'}")
        if mutation == "NONE":
            bad += [f"{program} fails ({order}) without any mutation" for order, program, fault in seen if fault]
        else:
            bad += [f"{mutation} survives in order {order}" for order in orders if order not in [line[0] for line in seen]]
        for path in programs.values():
            path.unlink()
        sys.stdout.flush()
    print("\n".join(bad) if bad else f"{len(names)} mutations, all of them caught")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
