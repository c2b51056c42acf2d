"""What the checks of a tree share: violations as file:line: reason, and the command line."""
import pathlib
import sys


def check(found):
    """`found`: (path below the root, line, reason) of each violation."""
    found = list(found)
    for relative, number, reason in found:
        print(f"{relative}:{number}: {reason}")
    return 1 if found else 0


def main(doc, violations, selftest):
    if len(sys.argv) != 2:
        sys.exit(doc)
    sys.exit(selftest() if sys.argv[1] == "--selftest" else check(violations(pathlib.Path(sys.argv[1]).resolve())))
