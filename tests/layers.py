#!/usr/bin/env python3
"""Checks the shape of the source tree: what may include what, and how long files and functions may be.

layers.py ROOT        checks the tree, prints each violation as file:line: reason, exits 1 where there is one
layers.py --selftest  plants one violation of each rule in a temporary tree and exits 1 unless each is found
"""
import pathlib
import re
import subprocess
import tempfile

import rules

# Each layer and those below it, which it may include. `kernels` is arithmetic on raw pointers and does not even include `core`. `theory` and
# `constructed` (theory/constructed) are a wing: they use the library, and no layer of it may include them.
BELOW = {
    "core": [],
    "kernels": [],
    "data": ["core"],
    "theory": ["core", "data"],
    "runtime": ["core", "kernels"],
}
BELOW["parallel"] = [*BELOW["runtime"], "runtime"]
BELOW["ops"] = [*BELOW["runtime"], "runtime"]
BELOW["decode"] = [*BELOW["ops"], "ops"]
BELOW["mixers"] = [*BELOW["ops"], "ops"]
BELOW["models"] = [*BELOW["mixers"], "mixers"]
BELOW["constructed"] = [*BELOW["models"], "models", "theory"]
BELOW["generate"] = [*BELOW["models"], "models", "data", "decode"]
BELOW["c"] = [*BELOW["generate"], "generate"]
BELOW["serve"] = [*BELOW["generate"], "generate"]
BELOW["train"] = [*BELOW["generate"], "generate", "parallel"]
BELOW["eval"] = [*BELOW["train"], "train"]
BELOW["experiments"] = [*BELOW["eval"], "eval"]
TORCH_FREE = {"core", "kernels", "data", "theory"}
TORCH_FREE_FOLDERS = {f"based/serve/{folder}" for folder in ("http", "protocol", "templates", "constraints", "page")}
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 80

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
TESTS = re.compile(r'^\s*#\s*include\s*[<"]tests/')
CUDA_CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b(USE_CUDA|WITH_CUDA|HAVE_CUDA|BASED_(WITH_)?CUDA|__CUDACC__|__CUDA_ARCH__)\b")
# Results leave by one door, which checks every write: apps/output.h.
STANDARD_OUTPUT = re.compile(r"\bstd::cout\b|\bstdout\b|(?<![\w:])(std::)?(printf|puts|putchar)\s*\(")
# std::filesystem throws words of its own, which name neither the file nor what to do: based/core/folders.h does not. With an error_code as the
# last argument, under one of these names, it throws nothing.
FILESYSTEM = re.compile(r"\b(?:fs|filesystem)::(?:absolute|canonical|copy\w*|create_\w+|current_path|directory_iterator|equivalent|exists|file_size"
                        r"|is_\w+|last_write_time|read_symlink|recursive_directory_iterator|remove\w*|rename|resize_file|status)\b(?![>{])")
ERROR_CODE = re.compile(r", (?:error|failed|gone|ignored|none|no_link)\)")
# Operators' functions are overloads by the operator's struct, and sources are compiled together: braces alone may fit the struct of another file.
BARE_ARGUMENTS = re.compile(r"(?<![\w>.:])(?:check|forward|forward_meta|(?:forward_)?reference|backward|backward_meta|backward_reference)\(\{")
MACHINE_PATH = re.compile(r"(?<![\w./$}])/(home|root|work|Users|mnt|scratch)/[A-Za-z0-9_]")
# A line that opens a function's body: a parameter list, then qualifiers or an initialiser list, then a brace that ends the line.
NO_FUNCTION = re.compile(r"^\s*(namespace|class|struct|union|enum|extern|if|for|while|switch|else|do|try|catch|#)\b|=\s*\{$")


# The families of kernels that a family of based/kernels may include, beside common.
FAMILIES = {
    "common": set(),
    "attention": {"pair_attention"},
    "conv": {"pair_attention"},
    "delta_rule": {"linear"},
    "linear": {"conv"},
    "linear_attention": {"pair_attention"},
    "norm": set(),
    "pair_attention": {"training"},
    "pointwise": set(),
    "sampling": set(),
    "scan": {"linear"},
    "step": {"attention", "conv", "linear", "norm", "taylor"},
    "taylor": {"pair_attention"},
    "training": set(),
}


def layer_of(parts):
    """The layer of a file or an include, by the parts of its path; None where it is none of a layer."""
    if parts[0] == "based" and len(parts) > 2:
        return parts[1]
    if parts[0] == "theory" and len(parts) > 1:
        return "constructed" if parts[1] == "constructed" else "theory"
    return None


def violations_of_families(parts, lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        included = match.group(1).split("/") if match else []
        if included[:2] == ["based", "kernels"] and included[2] not in {parts[2], "common", *FAMILIES.get(parts[2], ())}:
            yield number, f"kernels/{parts[2]} must not include kernels/{included[2]}: name it in FAMILIES of tests/layers.py"


def violations_of_includes(path, layer, lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(1)
        if TORCH.match(name) and (layer in TORCH_FREE or str(path.parent) in TORCH_FREE_FOLDERS):
            yield number, f"{layer} must not include torch: {name}"
        other = layer_of(name.split("/"))
        if name.startswith(("apps/", "bench/", "tests/")):
            yield number, f"{layer} must not include {name}"
        if other is not None and other not in (layer, *BELOW[layer]):
            yield number, f"{layer} must not include {other} ({name})"


def without_text(line):
    """The line without string and character literals and comments, so that only real braces are counted."""
    line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "0", line)
    return line.split("//")[0]


def violations_of_length(lines, host):
    """`host`: a source of host code. A CUDA kernel may be longer than a function, if it reads from top to bottom."""
    if len(lines) > MAX_FILE_LINES:
        yield MAX_FILE_LINES, f"file of {len(lines)} lines, at most {MAX_FILE_LINES} are allowed"
    if not host:
        return
    depth, functions = 0, []  # functions: (depth outside the body, first line)
    for number, raw in enumerate(lines, 1):
        line = without_text(raw)
        if line.rstrip().endswith("{") and "(" in statement_before(lines, number) and not NO_FUNCTION.search(line):
            functions.append((depth + line.count("{") - line.count("}") - 1, number))
        depth += line.count("{") - line.count("}")
        while functions and depth <= functions[-1][0]:
            _, first = functions.pop()
            if number - first + 1 > MAX_FUNCTION_LINES:
                yield first, f"function of {number - first + 1} lines, at most {MAX_FUNCTION_LINES} are allowed"


def statement_before(lines, number):
    """The text of the statement that line `number` ends: a function's head may cover several lines."""
    text = without_text(lines[number - 1])
    for line in reversed(lines[max(0, number - 12):number - 1]):
        line = without_text(line).rstrip()
        if line.endswith((";", "{", "}", ":")) or line.lstrip().startswith("#") or not line:
            break
        text = line + " " + text
    return text


def tracked(root):
    """Files under version control; where ROOT is no checkout of git, all files but what the build makes."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [root / name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()]
    made = {".git", ".venv", "build", "out"}
    return [path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] not in made]


def violations(root):
    for path in sorted(tracked(root)):
        relative = path.relative_to(root)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # data, not text
        for number, line in enumerate(lines, 1):
            if MACHINE_PATH.search(line) and path.name != "layers.py":
                yield relative, number, "path of one machine"
        if path.suffix not in SOURCES:
            continue
        parts = relative.parts
        layer = layer_of(parts)
        if layer is not None:
            if layer not in BELOW:
                yield relative, 1, f"unknown layer based/{layer}: name it in tests/layers.py"
                continue
            for number, reason in violations_of_includes(relative, layer, lines):
                yield relative, number, reason
        if parts[:2] == ("based", "kernels") and len(parts) > 3:
            for number, reason in violations_of_families(parts, lines):
                yield relative, number, reason
        if parts[0] in ("apps", "bench"):
            for number, line in enumerate(lines, 1):
                if TESTS.match(line):
                    yield relative, number, f"{parts[0]} must not include tests"
        if parts[:2] != ("based", "kernels"):
            for number, line in enumerate(lines, 1):
                if CUDA_CONDITION.match(line):
                    yield relative, number, "CUDA is chosen by folder in CMake, not by #if in shared code"
        if parts[0] in ("apps", "based", "bench") and path.suffix in {".h", ".cpp"}:
            for number, line in enumerate(lines, 1):
                if STANDARD_OUTPUT.search(without_text(line)):
                    yield relative, number, "standard output is written through apps/output.h only"
                if FILESYSTEM.search(without_text(line)) and not ERROR_CODE.search(line):
                    yield relative, number, "std::filesystem throws words of its own; based/core/folders.h has what to call"
        if layer == "ops":
            for number, line in enumerate(lines, 1):
                if BARE_ARGUMENTS.search(without_text(line)):
                    yield relative, number, "name the struct: reference(Foo{...}), since braces alone may fit an overload of another file"
        for number, reason in violations_of_length(lines, path.suffix in {".h", ".cpp"}):
            yield relative, number, reason


def selftest():
    body = "".join(f"  x += {i};\n" for i in range(MAX_FUNCTION_LINES))
    clean = {
        "based/core/a.h": "#include <vector>\n",
        "based/kernels/scan/cpu/a.cpp": '#include "based/kernels/linear/a.h"\n#if defined(__CUDACC__)\n#endif\n',
        "based/mixers/b.cpp": '#include <torch/torch.h>\n#include "based/ops/a.h"\nnamespace based {\n' + body + "}\n",
        "based/core/files.cpp": "std::error_code error;\nfs::remove(path, error);\nfs::path at(path);\n",
        "apps/c.cpp": '#include "based/eval/a.h"\n',
        "based/ops/braces.cpp": "return table->forward({x, y}) + reference(Foo{x});\n",
        "tests/kernels/scan/cuda/a.cu": '#include "bench/kernels/scan/problems/a.cuh"\n',
        "theory/constructed/a.cpp": '#include "based/models/a.h"\n',
        "based/kernels/scan/cuda/long.cu": "__global__ void f(int x) {\n" + body + "}\n",
    }
    planted = {
        "based/core/up.h": ('#include "based/ops/a.h"\n', "must not include ops"),
        "based/ops/up.cpp": ('#include "based/mixers/kit/mixer.h"\n', "must not include mixers"),
        "based/kernels/core.h": ('#include "based/core/error.h"\n', "must not include core"),
        "based/kernels/scan/conv.h": ('#include "based/kernels/conv/a.h"\n', "must not include kernels/conv"),
        "theory/up.h": ('#include "theory/constructed/a.h"\n', "theory must not include constructed"),
        "based/eval/wing.h": ('#include "theory/statement.h"\n', "eval must not include theory"),
        "based/kernels/scan/cpu/torch.cpp": ("#include <torch/torch.h>\n", "must not include torch"),
        "based/serve/http/torch.cpp": ("#include <torch/torch.h>\n", "must not include torch"),
        "based/data/torch.cpp": ("#include <ATen/ATen.h>\n", "must not include torch"),
        "based/train/app.cpp": ('#include "apps/command.h"\n', "must not include apps/command.h"),
        "based/ops/cuda.cpp": ("#ifdef BASED_WITH_CUDA\n#endif\n", "CUDA is chosen by folder"),
        "apps/out.cpp": ('std::printf("x");\n', "through apps/output.h only"),
        "bench/kernels/scan/test.cu": ('#include "tests/kernels/common/cuda/report.cuh"\n', "bench must not include tests"),
        "based/train/folder.cpp": ('if (!fs::is_directory(folder)) return;\n', "throws words of its own"),
        "apps/folder.cpp": ("std::filesystem::create_directories(folder);\n", "throws words of its own"),
        "bench/out.cpp": ("std::fputc('x', stdout);\n", "through apps/output.h only"),
        "based/nolayer/a.cpp": ("int x;\n", "unknown layer"),
        "based/ops/bare.cpp": ("return forward_reference({x, y});\n", "name the struct"),
        "based/core/long.cpp": ("int x;\n" * (MAX_FILE_LINES + 1), f"file of {MAX_FILE_LINES + 1} lines"),
        "based/core/function.cpp": ("int f(int x,\n      int y) {\n" + body + "  return x;\n}\n", "function of 83 lines"),
        "docs/path.md": ("see /ho" + "me/someone/file\n", "path of one machine"),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(name, text):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")

        for name, text in clean.items():
            write(name, text)
        failures = [f"clean tree: {relative}:{number}: {reason}" for relative, number, reason in violations(root)]
        for name, (text, expected) in planted.items():
            write(name, text)
            found = list(violations(root))
            if [str(relative) for relative, _, _ in found] != [name] or expected not in found[0][2]:
                failures.append(f"{name}: expected one violation with '{expected}', found {found}")
            (root / name).unlink()
    print("\n".join(failures) or f"{len(planted)} planted violations found, none in the clean tree")
    return 1 if failures else 0


if __name__ == "__main__":
    rules.main(__doc__, violations, selftest)
