#!/usr/bin/env python3
"""Checks the documents against the tree that they describe.

documents.py ROOT        prints each violation as file:line: reason, exits 1 where there is one
documents.py --selftest  plants one violation of each rule in a temporary tree and exits 1 unless each is found

README.md, CONTRIBUTING.md, CHANGELOG.md and all of docs/ name only files that exist, in links and in text. A page of docs/kernels has the
headings below, in this order, a drawing, and its line in the index. A table of docs/lab says the day of each row.
"""
import itertools
import pathlib
import re
import tempfile

import rules

HEADINGS = ["Contract", "Algorithm", "What binds", "What would be next"]
FOLDERS = "apps|based|bench|cmake|docs|experiments|tests|theory|tools"
LAYERS = "core|data|decode|eval|experiments|generate|kernels|mixers|models|ops|runtime|train"
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(rf"(?<![\w./<-])(?:{FOLDERS})/[\w./{{}},*<>-]*")
IN_LAYER = re.compile(rf"(?<![\w./<-])(?:{LAYERS})/[\w./{{}},*-]+\.(?:h|cpp|cu|cuh|def|\{{h,cpp\}})(?!\w)")  # the architecture leaves based/ out
KERNEL = re.compile(r"(?<![\w./{},*<-])(?!(?:apps|based|bench|tests)/)(?:\w+/)*[\w{},*]+\.(?:cu|cuh)(?!\w)")  # a kernel's file below based/kernels
PLACEHOLDER = re.compile(r"<|\bfoo|my_mixer")  # names that a reader is to replace
DAY = re.compile(r"\d{4}-\d\d-\d\d$")


def expanded(name):
    """linear.{h,cpp} -> linear.h, linear.cpp"""
    match = re.search(r"\{([^{}]*)\}", name)
    if not match:
        return [name]
    return list(itertools.chain(*(expanded(name[:match.start()] + part + name[match.end():]) for part in match[1].split(","))))


def exists(root, name):
    return any(root.glob(name)) if "*" in name else (root / name).exists()


def is_kernel(root, name):
    return any((root / "based/kernels").rglob(name))


def violations_of_names(root, relative, lines):
    for number, line in enumerate(lines, 1):
        for target in LINK.findall(line):
            if "://" not in target and not target.startswith("#") and not ((root / relative).parent / target.split("#")[0]).exists():
                yield number, f"link to a file that is not there: {target}"
        for pattern, folder in ((NAMED, root), (IN_LAYER, root / "based"), (KERNEL, None)):
            for name in pattern.findall(LINK.sub("]", line)):
                name = re.sub(r"[.,{]+$", "", name)
                for path in [] if PLACEHOLDER.search(name) else expanded(name):
                    if not exists(root, path) and not (is_kernel(root, path) if folder is None else exists(folder, path)):
                        yield number, f"names a file that is not there: {path}"


def headings_of(lines):
    """(level, text, line number) of each heading outside drawings, and the numbers of the lines that open a drawing."""
    headings, drawings, inside = [], [], False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            inside = not inside
            if inside:
                drawings.append(number)
        elif not inside and line.startswith("#"):
            marks, text = line.split(" ", 1)
            headings.append((len(marks), text.strip(), number))
    return headings, drawings


def violations_of_kernel_page(root, relative, lines):
    headings, drawings = headings_of(lines)
    sections = [(text, number) for level, text, number in headings if level == 2]
    if [text for text, _ in sections] != HEADINGS:
        yield sections[0][1] if sections else 1, f"headings {[text for text, _ in sections]}, wanted {HEADINGS}"
    elif not any(sections[1][1] < number < sections[2][1] for number in drawings):
        yield sections[1][1], "the algorithm has no drawing"
    index = root / relative.parent / "README.md"
    if not index.exists() or f"]({relative.name})" not in index.read_text(encoding="utf-8"):
        yield 1, f"{relative.parent}/README.md does not link to it"


def violations_of_lab_page(lines):
    for number, line in enumerate(lines, 1):
        first = line.split("|")[1].strip() if line.startswith("|") else None
        if first is not None and first not in ("date", "---") and not DAY.match(first):
            yield number, "a row without its day (yyyy-mm-dd)"


def violations(root):
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((root / "docs").rglob("*.md"))
    for path in pages:
        if not path.exists():
            continue
        relative, lines = path.relative_to(root), path.read_text(encoding="utf-8").splitlines()
        found = list(violations_of_names(root, relative, lines))
        if path.name != "README.md" and relative.parts[:2] == ("docs", "kernels"):
            found += violations_of_kernel_page(root, relative, lines)
        if path.name != "README.md" and relative.parts[:2] == ("docs", "lab"):
            found += violations_of_lab_page(lines)
        for number, reason in found:
            yield relative, number, reason


def selftest():
    page = "# A\n\n## Contract\n\n## Algorithm\n\n```\n# a ─► b\n```\n\n## What binds\n\n## What would be next\n"
    clean = {
        "based/core/a.h": "", "based/core/a.cpp": "", "based/kernels/scan/cuda/a.cu": "", "docs/kernels/a.md": page, "docs/kernels/README.md": "[a](a.md)\n",
        "docs/lab/a.md": "| date | what |\n|---|---|\n| 2026-01-02 | b |\n",
        "README.md": "`based/core/a.{h,cpp}`, `based/core/*.h`, [k](docs/kernels/a.md#contract), `tests/foo_test.cpp`, `based/<name>.h`, `core/a.h`, `a.cu`.\n",
    }
    planted = {
        "README.md": ("[k](docs/kernels/b.md)\n", "link to a file that is not there: docs/kernels/b.md"),
        "CONTRIBUTING.md": ("open `based/core/a.{h,cc}`.\n", "names a file that is not there: based/core/a.cc"),
        "CHANGELOG.md": ("see based/core/*.cu\n", "names a file that is not there: based/core/*.cu"),
        "docs/architecture.md": ("`core/b.h`\n", "names a file that is not there: core/b.h"),
        "docs/training.md": ("`b.cu`\n", "names a file that is not there: b.cu"),
        "docs/kernels/a.md": (page.replace("What binds", "Binding"), "headings"),
        "docs/kernels/sub/a.md": (page, "docs/kernels/sub/README.md does not link to it"),
        "docs/kernels/README.md": ("no index\n", "docs/kernels/README.md does not link to it"),
        "docs/lab/a.md": (clean["docs/lab/a.md"] + "| yesterday | b |\n", "without its day"),
    }
    drawn = page.replace("```\n# a ─► b\n```\n", "")
    failures = []
    for name, (text, expected) in [*planted.items(), ("docs/kernels/a.md", (drawn, "no drawing")), (None, (None, None))]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file, content in {**clean, **({name: text} if name else {})}.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content, encoding="utf-8")
            found = list(violations(root))
        if name is None and found or name is not None and (len(found) != 1 or expected not in found[0][2]):
            failures.append(f"{name}: expected {expected or 'nothing'}, found {found}")
    print("\n".join(failures) or f"{len(planted) + 1} planted violations found, none in the clean tree")
    return 1 if failures else 0


if __name__ == "__main__":
    rules.main(__doc__, violations, selftest)
