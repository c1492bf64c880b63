"""The project's own test programs behind the preload library: each test of each program, in a process of its own.

    python3 tests/preload/suite.py SOURCE BUILD [FOLDER...]

FOLDER is unit, simcuda, integration, threads or process; all of them without. A test may fail only where it is in EXPECTED, with the reason;
one that is there and passes is told too, since then the reason is gone.
"""
import glob
import os
import re
import subprocess
import sys

# Tests that look at what the simulated device itself has: calls, pages and free bytes that are in part the preload library's.
COUNTS = "counts what the device has, some of which is the library's"
# Tests of how the simulated device finds faults in plain driver memory, which is not what they get.
PAGES = "memory of a pool is mapped page by page and stays mapped when it is freed"
# Tests of pools whose segments the driver is asked for: it is the library that answers, so the device itself sees other calls.
SEGMENTS = "counts the driver's allocations, and a segment is a block of the library's own pool"
EXPECTED = {
    "unit/test_pool_faults": {"segments": SEGMENTS},
    "unit/test_pool_segments": {
        "a_device_without_virtual_memory": SEGMENTS, "a_free_that_fails": SEGMENTS, "a_refusal_says_that_memory_does_not_move": SEGMENTS,
        "addresses_that_are_no_multiple_of_a_page": SEGMENTS, "beside_a_pool_that_moves_pages": SEGMENTS, "caches_forget_a_segment_that_goes": SEGMENTS, "captures_stay_valid": SEGMENTS,
        "limit_headroom_and_reserve": SEGMENTS, "memory_waits_for_its_streams": SEGMENTS,
        "segments_as_long_as_the_request_wants": SEGMENTS, "whole_segments_go_back": SEGMENTS},
    "unit/test_api_two_devices": {
        "copies_of_the_drivers_memory": "its segments are the library's pages; devices without access to each other need backend:malloc, the manual says so"},
    "unit/test_api_arguments": {"more_than_the_device": COUNTS, "figures_add_up": COUNTS},
    "unit/test_pool_capture": {"a_capture_without_a_set": COUNTS},
    "simcuda/test_core_memory": {"values_are_reused": COUNTS, "alloc_and_free": COUNTS},
    "simcuda/test_core_panel": {"calls_are_counted_in_groups": COUNTS, "copies_are_touches": PAGES, "rectangles_move_bytes": PAGES},
    "simcuda/test_core_races": {"free_too_early": "the library makes such frees safe", "use_after_destroy": COUNTS},
    "simcuda/test_core_streams": {"context_destroy": COUNTS, "peers": "pools of one process are open to each other's devices; the manual says so"},
    "simcuda/test_core_threads": {"threads_do_not_disturb_each_other": COUNTS},
    "simcuda/test_rt_graph": {"memory_freed_under_a_graph": PAGES},
    "simcuda/test_rt_ipc": {
        "handles_of_memory": "no CUDA IPC; the manual says so", "opened_in_another_process": "no CUDA IPC; the manual says so",
        "attributes_of_plain_memory": "no CUDA IPC; the manual says so",
        "sync_memops": "mapped memory cannot have it; the manual says so"},
    "simcuda/test_rt_pool": {"bad_calls": "cuMemFreeAsync takes what cuMemAlloc gave"},
    "simcuda/test_rt_runtime": {"it_is_a_client_of_the_driver": COUNTS},
}


def programs(build, folders):
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(build, "tests", folder, "*"))):
            if os.path.isfile(path) and os.access(path, os.X_OK) and not path.endswith(".so"):
                yield f"{folder}/{os.path.basename(path)}", path


def main(build, folders):
    simcuda = os.path.join(build, "simcuda")
    environment = dict(os.environ, CUDAMEMPOOL_DRIVER=os.path.join(simcuda, "libcuda.so.1"), LD_LIBRARY_PATH=simcuda,
                       LD_PRELOAD=os.path.join(build, "lib/libcudamempool_preload.so") + ":" +
                       os.path.join(build, "tests/preload/each_alone.so"))
    findings, count, failures = [], 0, 0
    for name, path in programs(build, folders):
        extra = {"SIMCUDA_DEVICE": "sim:64MiB,content"} if "runtime_client" in name else {}
        done = subprocess.run([path], env=dict(environment, **extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=900, cwd=os.path.dirname(path))
        failed = set(re.findall(r"^failed alone: (\w+)$", done.stdout, re.M))
        expected = set(EXPECTED.get(name, {}))
        count += 1
        failures += len(failed)
        findings += [f"{name}: {test} fails" for test in sorted(failed - expected)]
        findings += [f"{name}: {test} passes, but is expected to fail" for test in sorted(expected - failed)]
        if done.returncode and not failed:
            findings.append(f"{name}: ended with {done.returncode}\n{done.stdout[-2000:]}")
    for finding in findings:
        print(finding)
    print(f"{count} programs, {failures} tests fail for reasons given here, {len(findings)} findings")
    return 1 if findings or not count else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[2]), sys.argv[3:] or ["unit", "simcuda", "integration", "threads", "process"]))
