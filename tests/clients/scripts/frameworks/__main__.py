"""What users of frameworks do with a server: `python frameworks http://127.0.0.1:8080 [name ...]`.

Prints a line for every check: package, version, the API that it speaks (OpenAI's, Anthropic's or TGI's),
the check, and `ok` or what failed. Exits with 1 if anything failed, or if anybody but the server was called.
Needs the packages of tests/clients/frameworks.txt.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

from checking import Guard, report, stay_offline

FRAMEWORKS = (
    *("openai", "responses", "anthropic", "langchain", "llama_index", "litellm", "instructor", "outlines"),
)


def main(url: str, names: list[str]) -> int:
    """Run the checks of the frameworks named, of all without names; return the exit status."""
    stay_offline()
    guard = Guard()
    sys.addaudithook(guard)
    succeeded = True
    for name in names or FRAMEWORKS:
        with contextlib.redirect_stdout(sys.stderr):  # frameworks talk
            found = importlib.import_module(f"with_{name}").CHECKS
        for check in found:
            succeeded &= report(check, url)
    for host in guard.refused:
        print(f"somebody tried to reach {host}")
    return 0 if succeeded and not guard.refused else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), sys.argv[2:]))
