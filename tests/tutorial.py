#!/usr/bin/env python3
"""Runs the commands of docs/tutorial.

tutorial.py PROGRAM FOLDER   runs every ```sh block, page by page, in FOLDER with PROGRAM as `based`; exits 1 where a command fails, or where a line of
                             the next ```text block is not printed. Digits are not compared, since rounding and time depend on the machine.

A comment <!-- in tests: SED --> before a block is a sed script that makes its sizes smaller.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?:<!-- in tests: (.*?) -->\n)?```(sh|text)\n(.*?)```", re.S)


def without_digits(line):
    return re.sub(r"\s+", " ", re.sub(r"[0-9a-f.,]*[0-9][0-9a-f.,]*(?:e-\d+)?", "N", line)).strip()


def shortened(block, script):
    return subprocess.run(["sed", script], input=block, text=True, check=True, capture_output=True).stdout if script else block


def failure_of(page, folder, environment):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    commands = "".join(shortened(block, script) for script, language, block in blocks if language == "sh")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ran = subprocess.run(["bash", "-euc", commands], cwd=folder, env=environment, text=True, errors="replace", stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=900)
    if ran.returncode:
        return f"exit code {ran.returncode}:\n{ran.stdout}"
    printed = {without_digits(line) for line in ran.stdout.splitlines()}
    missing = [line for _, language, block in blocks if language == "text" for line in block.splitlines() if without_digits(line) not in printed]
    return f"not printed: {missing}\n{ran.stdout}" if missing or not commands else ""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "BASED": str(ROOT), "OMP_WAIT_POLICY": "passive"}
    pages = sorted((ROOT / "docs/tutorial").glob("*.md"))
    failed = [f"{page.name}: {failure}" for page in pages if (failure := failure_of(page, folder / page.stem, environment))]
    print("\n".join(failed) or f"{len(pages)} pages ran")
    return 1 if failed or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
