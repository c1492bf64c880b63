"""JSON lines as the device checks print them, for those that are written in Python."""
import json
import sys


def say(name, verdict, text, **more):
    print(json.dumps({"name": name, "verdict": verdict, **more, "text": text}), flush=True)


def figure(name, value, unit, text):
    say(name, "measured", text, value=float(f"{value:.6g}"), unit=unit)


def skip_all(why):
    """There is nothing here that could be tried: the part counts as skipped."""
    print(why, file=sys.stderr)
    sys.exit(77)


def import_torch():
    try:
        import torch
    except ImportError as error:
        skip_all(f"no PyTorch: {error}")
    if not torch.cuda.is_available():
        skip_all("this PyTorch sees no GPU")
    return torch
