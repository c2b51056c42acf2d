"""python -m based_cpp selftest"""

import argparse
import sys

from . import selftest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m based_cpp")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("selftest", help="compare every operator with a double-precision reference on this machine")
    command.add_argument("--device", action="append", help="cpu or cuda; default: the CPU and, if there is one, the GPU")
    command.add_argument("--only", default="", help="operators whose name contains this text")
    arguments = parser.parse_args()
    return selftest.run(arguments.device, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
