"""The ``tamis`` command as a file, which is what spark-submit asks for.

Run it with ``spark-submit --master spark://HOST:7077 examples/submit.py run pipeline.toml``.
"""

import sys

from tamis.cli import main

if __name__ == "__main__":
    sys.argv[1:] = sys.argv[1:] or ["--help"]
    main()
