"""Python imports this at its start, since `cudamempool run` has put this folder first in PYTHONPATH. The sitecustomize that it hides, if
there is one, is imported after it, as if this one were not there."""
import importlib.util
import os
import sys


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        if importlib.util.find_spec("cudamempool") is None:
            sys.path.append(os.path.dirname(here))
        folder = importlib.util.find_spec("cudamempool").submodule_search_locations[0]
        # by its file: the package itself is imported when PyTorch is
        spec = importlib.util.spec_from_file_location("cudamempool._startup", os.path.join(folder, "_startup.py"))
        startup = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(startup)
        startup.install()
    except Exception as error:  # a program must not fail because of this
        print(f"cudamempool: Python was started without it: {error!r}", file=sys.stderr)
    return here


def _chain(here):
    kept = sys.path[:]
    sys.path[:] = [entry for entry in kept if os.path.abspath(entry or ".") != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        sys.path[:] = kept + [entry for entry in sys.path if entry not in kept]


_chain(_start())
