"""The library is loaded by a Python that is running already, with nothing set in its environment, and serves memory of both kinds there.

    load_from_python.py LIBRARY DRIVER

What a library needs of static thread-local storage must be there at the start of a process, so one that needs much cannot be loaded later;
threads that were there before it must be able to use it, and end after it.
"""
import ctypes
import os
import sys
import threading

KINDS = (("cmpool_malloc", "cmpool_free"), ("cmpool_pinned_malloc", "cmpool_pinned_free"))


class Config(ctypes.Structure):
    """cmpool_config"""
    _fields_ = [("struct_size", ctypes.c_size_t), ("device", ctypes.c_int), ("options", ctypes.c_char_p), ("peers", ctypes.c_void_p),
                ("peer_count", ctypes.c_size_t)]


def must(status):
    if status != 0:
        raise RuntimeError(f"status {status}")


def use(library, pool, faults):
    try:
        for size in (100, 5000, 300000, 3 << 20):
            for malloc, free in KINDS:
                block = ctypes.c_void_p()
                must(getattr(library, malloc)(pool, ctypes.byref(block), ctypes.c_size_t(size), None))
                if malloc == "cmpool_pinned_malloc":
                    ctypes.memset(block, 7, size)
                must(getattr(library, free)(pool, block, None))
    except RuntimeError as fault:
        faults.append(str(fault))


def main():
    path, driver = sys.argv[1:]
    go, library, pool, faults = threading.Event(), [None], ctypes.c_uint64(), []

    def wait_and_use():
        go.wait()
        use(library[0], pool, faults)

    threads = [threading.Thread(target=wait_and_use) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        library[0] = ctypes.CDLL(path)
        library[0].cmpool_version.restype = ctypes.c_char_p
        print(library[0].cmpool_version().decode())
        os.environ["CUDAMEMPOOL_DRIVER"] = driver
        config = Config(ctypes.sizeof(Config), 0, None, None, 0)
        must(library[0].cmpool_create(ctypes.byref(pool), ctypes.byref(config)))
    finally:
        go.set()
        for thread in threads:
            thread.join()
    use(library[0], pool, faults)
    must(library[0].cmpool_destroy(pool))
    sys.exit("\n".join(faults) or 0)


main()
