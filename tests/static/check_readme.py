"""The README's tables are those of the .def lists."""
import os
import subprocess
import sys

import tree

source, _ = tree.arguments()
result = subprocess.run([sys.executable, os.path.join(source, "tools/readme_tables.py"), "--check"], capture_output=True, text=True)
print(result.stdout + result.stderr, end="")
sys.exit(result.returncode)
